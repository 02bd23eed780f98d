//! A request's own limits in time, as an extension of both generating endpoints: `queue_seconds` to wait for a
//! lane and `work_seconds` to run once it has one. They may be shorter than the server's settings of these
//! names, and never longer.

use crate::error::ApiError;
use crate::wire::fields::{Fields, invalid};
use lavalane_actors::EngineSettings;
use std::time::Duration;

const QUEUE: &str = "queue_seconds";
const WORK: &str = "work_seconds";

/// The limits; `None` is the server's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeLimits {
    /// How long to wait for a lane; more than zero.
    pub queue_wait_max: Option<Duration>,
    /// How long to run; more than zero.
    pub work_time_max: Option<Duration>,
}

impl TimeLimits {
    /// Reads both fields.
    ///
    /// # Errors
    /// A field is there and is no time, or none at all.
    pub fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        Ok(Self { queue_wait_max: time(fields, QUEUE)?, work_time_max: time(fields, WORK)? })
    }

    /// Checks both against an engine's own limits.
    ///
    /// # Errors
    /// One is longer.
    pub fn check(&self, settings: &EngineSettings) -> Result<(), ApiError> {
        within(QUEUE, self.queue_wait_max, settings.queue_wait_max)?;
        within(WORK, self.work_time_max, settings.work_time_max)
    }
}

fn time(fields: &Fields<'_>, name: &str) -> Result<Option<Duration>, ApiError> {
    let Some(seconds) = fields.number(name)? else { return Ok(None) };
    let time = Duration::try_from_secs_f32(seconds).ok().filter(|time| !time.is_zero());
    let rule = || format!("must be a time in seconds, more than 0, not {seconds}");
    time.map(Some).ok_or_else(|| fields.invalid(name, &rule()))
}

fn within(name: &str, time: Option<Duration>, limit: Duration) -> Result<(), ApiError> {
    match time {
        Some(time) if time > limit => {
            let (time, limit) = (time.as_secs_f64(), limit.as_secs_f64());
            let rule = format!("must be at most {limit}, the server's own limit, not {time}");
            Err(invalid(name, &rule))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use serde_json::{Value, json};

    fn read(body: &Value) -> Result<TimeLimits, ApiError> {
        let limits = TimeLimits::read(&Fields::of_body(body).expect("an object"))?;
        limits.check(&EngineSettings::default())?;
        Ok(limits)
    }

    fn check(body: Value, queue_ms: Option<u64>, work_ms: Option<u64>) {
        let expected = TimeLimits {
            queue_wait_max: queue_ms.map(Duration::from_millis),
            work_time_max: work_ms.map(Duration::from_millis),
        };
        assert_eq!(read(&body), Ok(expected), "{body}");
    }

    #[test]
    fn each_limit_is_its_own_and_absent_ones_are_the_server_s() {
        check(json!({}), None, None);
        check(json!({"queue_seconds": null, "work_seconds": null}), None, None);
        check(json!({"queue_seconds": 0.25}), Some(250), None);
        check(json!({"work_seconds": 90}), None, Some(90_000));
        check(json!({"queue_seconds": 60, "work_seconds": 600}), Some(60_000), Some(600_000));
    }

    #[test]
    fn what_is_no_time_or_longer_than_the_server_s_own_is_refused_by_name() {
        for (body, param, part) in [
            (json!({"queue_seconds": 0}), "queue_seconds", "more than 0"),
            (json!({"work_seconds": -1}), "work_seconds", "not -1"),
            (json!({"work_seconds": 1e30}), "work_seconds", "must be a time"),
            (json!({"work_seconds": "5"}), "work_seconds", "must be a number"),
            (json!({"queue_seconds": 60.5}), "queue_seconds", "at most 60, the server's own limit, not 60.5"),
            (json!({"work_seconds": 601}), "work_seconds", "at most 600"),
        ] {
            let error = read(&body).expect_err(param);
            assert_eq!((error.kind(), error.param()), (ErrorKind::InvalidValue, Some(param)));
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
