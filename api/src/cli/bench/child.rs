//! Processes that are measured from outside: when they say their first byte, when they end, and how much memory
//! they had at the most.

use crate::cli::device_arguments::DeviceArguments;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// How often a process's memory is looked at. What is read is the most so far, so little is missed.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// A process that ran to its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    /// From its start to its first byte of output.
    pub(super) first_output: Duration,
    /// From its start to its end.
    pub(super) whole: Duration,
    /// The most memory that it had resident, in bytes, where the system tells.
    pub(super) resident_bytes_max: Option<u64>,
}

/// Runs a command to its end and measures it.
///
/// # Errors
/// It cannot be run, or fails; then the text is its last line of errors.
pub(super) fn measure(command: &mut Command) -> io::Result<Measured> {
    let start = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut output = child.stdout.take().expect("its output is piped");
    let mut errors = child.stderr.take().expect("its errors are piped");
    let output = std::thread::spawn(move || -> io::Result<Duration> {
        let mut first = [0];
        output.read_exact(&mut first)?;
        let elapsed = start.elapsed();
        io::copy(&mut output, &mut io::sink())?;
        Ok(elapsed)
    });
    let errors = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        errors.read_to_end(&mut bytes).map(|_| String::from_utf8_lossy(&bytes).into_owned())
    });
    let mut resident_bytes_max = None;
    let status = loop {
        resident_bytes_max = resident_bytes_max.max(resident_max(child.id()));
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(LOOK_INTERVAL);
    };
    let whole = start.elapsed();
    let panicked = |_| io::Error::other("a reader of its output panicked");
    let (first_output, errors) = (output.join().map_err(panicked)?, errors.join().map_err(panicked)??);
    if !status.success() {
        return Err(io::Error::other(format!("{status}: {}", errors.lines().last().unwrap_or(""))));
    }
    Ok(Measured { first_output: first_output?, whole, resident_bytes_max })
}

/// The most memory that a running process has had resident, in bytes; `None` where the system does not tell, or
/// the process has ended.
fn resident_max(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// A command of this very program on a model, computing as `device` says.
///
/// # Errors
/// The system does not tell what this program is.
pub(super) fn own(command: &str, model: &Path, device: &DeviceArguments) -> io::Result<Command> {
    let mut own = Command::new(std::env::current_exe()?);
    own.env_remove("LAVALANE_CONFIG").env_remove("LAVALANE_API_KEY");
    own.arg(command).arg("--model").arg(model);
    let mut flag = |name: &str, value: Option<&OsStr>| {
        value.map(|value| own.arg(name).arg(value));
    };
    flag("--device", device.device.as_ref().map(OsStr::new));
    flag("--pack", device.choice().pack.map(|pack| OsStr::new(pack.name())));
    let members = device.members.map(|members| members.to_string());
    flag("--members", members.as_ref().map(OsStr::new));
    flag("--kv-type", Some(OsStr::new(device.kv_type().name())));
    if device.precise {
        own.arg("--precise=true");
    }
    Ok(own)
}

/// A server as a child process; it ends when this is dropped.
pub(super) struct ServerProcess(pub(super) Child);

impl ServerProcess {
    /// The first line that it prints, and its output, to be kept open.
    pub(super) fn first_line(&mut self) -> io::Result<(String, BufReader<ChildStdout>)> {
        let output = self.0.stdout.take().ok_or_else(|| io::Error::other("its output was read before"))?;
        let mut output = BufReader::new(output);
        let mut line = String::new();
        output.read_line(&mut line)?;
        Ok((line, output))
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Both fail only for a process that has ended, which is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_measured_to_its_end_and_a_failure_tells_its_last_line() {
        let shell = |script: &str| measure(Command::new("sh").args(["-c", script]));
        let measured = shell("echo first; sleep 0.1; echo second").expect("it runs");
        assert!(measured.whole >= Duration::from_millis(100) && measured.first_output <= measured.whole);
        assert!(!cfg!(target_os = "linux") || measured.resident_bytes_max > Some(4096), "{measured:?}");
        let error = shell("echo first >&2; echo last >&2; exit 3").expect_err("it fails");
        assert!(error.to_string().ends_with(": last"), "{error}");
    }
}
