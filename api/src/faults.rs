//! `lavalane serve --fault …`: faults on order, to see how the server and its clients take them. Debug builds
//! have it; a release build refuses the flag.

use lavalane_actors::EngineHandle;
use lavalane_runtime::batch::BatchExecutor;
use lavalane_runtime::snapshot::files::{FileSystem, LocalFiles};
use std::sync::Arc;

/// Why `--fault` is refused.
#[derive(Debug, thiserror::Error)]
pub enum FaultsError {
    /// This build has no faults.
    #[error("--fault needs a debug build: this one has no faults but real ones")]
    ReleaseBuild,
    /// A fault's text is wrong.
    #[cfg(debug_assertions)]
    #[error("--fault: {0}")]
    Planned(#[from] lavalane_actors::testing::PlannedFaultError),
}

/// The faults of one server.
#[derive(Debug, Default)]
pub struct Faults {
    #[cfg(debug_assertions)]
    planned: Vec<lavalane_actors::testing::PlannedFault>,
    /// Whom to tell of faults in the actors, once it is there.
    #[cfg(debug_assertions)]
    engine: Arc<std::sync::OnceLock<EngineHandle>>,
    /// Counts the runs.
    #[cfg(debug_assertions)]
    script: lavalane_actors::testing::FaultScript,
}

impl Faults {
    /// Reads the flag's values.
    ///
    /// # Errors
    /// There is one, and this is a release build; or it is no fault.
    pub fn read(texts: &[String]) -> Result<Self, FaultsError> {
        #[cfg(debug_assertions)]
        {
            let planned = texts.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
            Ok(Self { planned, ..Self::default() })
        }
        #[cfg(not(debug_assertions))]
        match texts {
            [] => Ok(Self {}),
            _ => Err(FaultsError::ReleaseBuild),
        }
    }

    /// Puts the faults around an executor, if there are any.
    pub fn around(&self, executor: impl BatchExecutor + 'static) -> Box<dyn BatchExecutor> {
        #[cfg(debug_assertions)]
        if !self.planned.is_empty() {
            use lavalane_actors::testing::FaultInjectingExecutor;
            let script = self.script.clone().without_records();
            let script = self.planned.iter().fold(script, |script, fault| fault.add_to(script));
            let (planned, engine) = (self.planned.clone(), self.engine.clone());
            let inject = move |run| {
                let injections = planned.iter().filter_map(|fault| fault.injection(run));
                let Some(engine) = engine.get() else { return };
                injections.for_each(|injection| engine.inject(injection));
            };
            return Box::new(FaultInjectingExecutor::new(executor, script).with_observer(inject));
        }
        Box::new(executor)
    }

    /// The files that snapshots are kept in, with the disk's faults, if there are any.
    pub fn files(&self) -> Arc<dyn FileSystem> {
        #[cfg(debug_assertions)]
        if !self.planned.is_empty() {
            use lavalane_actors::testing::FaultyFiles;
            return Arc::new(FaultyFiles::new(self.planned.clone(), self.script.clone()));
        }
        Arc::new(LocalFiles)
    }

    /// Says whose executor it was. The engine then stops only on order, since its executor knows it.
    pub fn attach(&self, engine: &EngineHandle) {
        #[cfg(debug_assertions)]
        if !self.planned.is_empty() {
            // A second engine would not be told; there is only one.
            let _ = self.engine.set(engine.clone());
        }
        #[cfg(not(debug_assertions))]
        let _ = engine;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(debug_assertions))]
    #[test]
    fn a_release_build_refuses_every_fault_and_takes_none() {
        assert!(Faults::read(&[]).is_ok());
        let error = Faults::read(&["submission:1@3".to_owned()]).expect_err("a release build");
        assert!(error.to_string().contains("debug build"), "{error}");
    }

    #[cfg(debug_assertions)]
    #[test]
    fn a_fault_that_is_none_is_refused_with_the_list_of_those_there_are() {
        let error = Faults::read(&["fire@3".to_owned()]).expect_err("no fault").to_string();
        assert!(error.contains("--fault") && error.contains("device-lost-before"), "{error}");
        assert!(Faults::read(&["submission:1@3".to_owned(), "lane-panic:0@5".to_owned()]).is_ok());
    }
}
