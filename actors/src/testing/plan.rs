//! Faults as text, for `lavalane serve --fault`: `KIND[:NUMBER]@RUN`, and `@RUN+` for every run from that
//! one on.

use super::{DiskFault, Fault, FaultScript, Injection, When};
use lavalane_runtime::batch::LaneFaultCause;
use lavalane_runtime::ids::LaneId;
use std::str::FromStr;
use std::time::Duration;

/// The longest that one run is slowed down.
const SLOW_MS_MAX: u64 = 60_000;

/// A fault and the run in which it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedFault {
    run: u64,
    occurs: Occurs,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Occurs {
    Once,
    FromThenOn,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    /// In the executor.
    Executor(Fault),
    /// In the actors.
    Actors(Injection),
    /// On the disk that keeps snapshots.
    Disk(DiskFault),
}

/// Why a text is no fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlannedFaultError {
    /// It has no run.
    #[error("`{0}` names no run: write KIND@RUN or KIND:NUMBER@RUN")]
    NoRun(String),
    /// A part that must be a number is none.
    #[error("`{part}` in `{text}` is not a number from {least} on")]
    NotANumber {
        /// The whole text.
        text: String,
        /// The part.
        part: String,
        /// The least number that it may be.
        least: u64,
    },
    /// There is no fault of that name.
    #[error("there is no fault `{kind}`; there are: {}", kinds().join(", "))]
    UnknownKind {
        /// The name.
        kind: String,
    },
}

/// How a kind's number is used to make its fault.
type Make = fn(u64) -> What;

/// Every kind of fault, what its number is (none where it takes none), and how it is made.
const KINDS: &[(&str, Option<&str>, Make)] = &[
    ("device-lost-after", None, |_| What::Executor(Fault::DeviceLost(When::After))),
    ("device-lost-before", None, |_| What::Executor(Fault::DeviceLost(When::Before))),
    ("device-lost-during", Some("LANES"), |lanes| {
        What::Executor(Fault::DeviceLost(When::During(lanes as usize)))
    }),
    ("disk-full", None, |_| What::Disk(DiskFault::Full)),
    ("disk-slow", Some("MS"), |ms| What::Disk(DiskFault::Slow(Duration::from_millis(ms.min(SLOW_MS_MAX))))),
    ("executor-panic", None, |_| What::Executor(Fault::Panic(When::Before))),
    ("lane-panic", Some("LANE"), |lane| What::Actors(Injection::LanePanic(LaneId(lane as u32)))),
    ("left-out", Some("PLACE"), |place| What::Executor(Fault::LeftOut(place as usize))),
    ("not-finite", Some("PLACE"), |place| {
        What::Executor(Fault::Lane(place as usize, LaneFaultCause::LogitsNotFinite))
    }),
    ("out-of-memory", Some("PLACE"), |place| {
        What::Executor(Fault::Lane(place as usize, LaneFaultCause::OutOfMemory))
    }),
    ("process-killed", None, |_| What::Disk(DiskFault::ProcessKilled)),
    ("readers-slow", None, |_| What::Actors(Injection::ReadersSlow)),
    ("readers-vanish", None, |_| What::Actors(Injection::ReadersVanish)),
    ("scheduler-panic", None, |_| What::Actors(Injection::SchedulerPanic)),
    ("scheduler-slow", Some("MS"), |ms| {
        What::Actors(Injection::SchedulerSlow(Duration::from_millis(ms.min(SLOW_MS_MAX))))
    }),
    ("session-kept", Some("PLACE"), |place| What::Executor(Fault::SessionKept(place as usize))),
    ("slow", Some("MS"), |ms| What::Executor(Fault::Slow(Duration::from_millis(ms.min(SLOW_MS_MAX))))),
    ("submission", Some("LANES"), |lanes| What::Executor(Fault::Submission(lanes as usize))),
    ("wrong-length", Some("PLACE"), |place| What::Executor(Fault::WrongLength(place as usize))),
];

/// Every kind as it is written.
fn kinds() -> Vec<String> {
    let write = |(kind, number, _): &(&str, Option<&str>, Make)| match number {
        Some(number) => format!("{kind}:{number}"),
        None => (*kind).to_owned(),
    };
    KINDS.iter().map(write).collect()
}

impl FromStr for PlannedFault {
    type Err = PlannedFaultError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |part: &str, least: u64, most: u64| {
            let value = part.parse().ok().filter(|value| (least..=most).contains(value));
            let (text, part) = (text.to_owned(), part.to_owned());
            value.ok_or(PlannedFaultError::NotANumber { text, part, least })
        };
        let (what, run) = text.rsplit_once('@').ok_or_else(|| PlannedFaultError::NoRun(text.to_owned()))?;
        let (run, occurs) = match run.strip_suffix('+') {
            Some(run) => (run, Occurs::FromThenOn),
            None => (run, Occurs::Once),
        };
        let run = number(run, 1, u64::MAX)?;
        let (kind, argument) = match what.split_once(':') {
            Some((kind, argument)) => (kind, Some(argument)),
            None => (what, None),
        };
        let known =
            KINDS.iter().find(|(name, takes, _)| *name == kind && takes.is_some() == argument.is_some());
        let (_, _, make) = known.ok_or_else(|| PlannedFaultError::UnknownKind { kind: what.to_owned() })?;
        let argument = argument.map_or(Ok(0), |argument| number(argument, 0, u64::from(u32::MAX)))?;
        Ok(Self { run, occurs, what: make(argument) })
    }
}

impl PlannedFault {
    /// Adds the fault to a script, if it is one of the executor's.
    #[must_use]
    pub fn add_to(&self, script: FaultScript) -> FaultScript {
        match (&self.what, self.occurs) {
            (What::Executor(fault), Occurs::Once) => script.at(self.run, fault.clone()),
            (What::Executor(fault), Occurs::FromThenOn) => script.from(self.run, fault.clone()),
            (What::Actors(_) | What::Disk(_), _) => script,
        }
    }

    /// What is to be injected into the actors during run number `run`.
    pub fn injection(&self, run: u64) -> Option<Injection> {
        match self.what {
            What::Actors(injection) if self.happens(run) => Some(injection),
            _ => None,
        }
    }

    /// What is wrong with the disk while `run` is the last run.
    pub fn disk(&self, run: u64) -> Option<DiskFault> {
        match self.what {
            What::Disk(fault) if self.happens(run) => Some(fault),
            _ => None,
        }
    }

    fn happens(&self, run: u64) -> bool {
        match self.occurs {
            Occurs::Once => run == self.run,
            Occurs::FromThenOn => run >= self.run,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, run: u64, occurs: Occurs, what: What) {
        assert_eq!(text.parse(), Ok(PlannedFault { run, occurs, what }));
    }

    #[test]
    fn a_fault_is_a_kind_a_number_and_a_run() {
        let executor = What::Executor;
        check("submission:2@7", 7, Occurs::Once, executor(Fault::Submission(2)));
        check("device-lost-before@1", 1, Occurs::Once, executor(Fault::DeviceLost(When::Before)));
        check("slow:250@5+", 5, Occurs::FromThenOn, executor(Fault::Slow(Duration::from_millis(250))));
        check("lane-panic:3@9", 9, Occurs::Once, What::Actors(Injection::LanePanic(LaneId(3))));
    }

    #[test]
    fn what_is_no_fault_is_refused_with_the_reason() {
        for (text, reason) in [
            ("submission:2", "names no run"),
            ("submission:2@0", "`0` in"),
            ("submission:two@3", "`two` in"),
            ("submission@3", "there is no fault `submission`"),
            ("device-lost-after:1@3", "there is no fault"),
            ("fire@3", "submission:LANES"),
        ] {
            let error = text.parse::<PlannedFault>().expect_err(text).to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn the_kinds_are_sorted_and_each_is_there_once() {
        assert!(KINDS.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn an_injection_into_the_actors_happens_in_its_run() {
        let once: PlannedFault = "readers-vanish@4".parse().expect("a fault");
        let happens: Vec<u64> = (1..8).filter(|run| once.injection(*run).is_some()).collect();
        assert_eq!(happens, [4]);
        let ever: PlannedFault = "readers-vanish@4+".parse().expect("a fault");
        let happens: Vec<u64> = (1..8).filter(|run| ever.injection(*run).is_some()).collect();
        assert_eq!(happens, [4, 5, 6, 7]);
    }
}
