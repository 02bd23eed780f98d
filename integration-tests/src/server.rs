//! A real server as a child process, and scripts of client programs that speak to it.

use crate::http::Http;
use crate::models::{ModelFile, find, root};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// How long a server may take to load the default model on a busy machine.
const START_TIME_MAX: Duration = Duration::from_secs(180);

/// A running server; it ends when this is dropped.
pub struct Server {
    child: Child,
    address: String,
    // Closing this end would fail the server's next line of output.
    _output: BufReader<ChildStdout>,
}

impl Server {
    /// Starts `program` as a server of `model` on a free port; `arguments` are further flags of `serve`.
    ///
    /// # Panics
    /// The server does not start, which is a failure of whatever test this is.
    pub fn start(program: &str, model: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(["serve", "--port", "0", "--model"]).arg(model).args(arguments);
        Self::start_command(command)
    }

    /// Starts a server by a command whose first line of output says where it listens.
    ///
    /// # Panics
    /// As [`Server::start`].
    pub fn start_command(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the server's program starts");
        let mut output = BufReader::new(child.stdout.take().expect("its output is piped"));
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = output.read_line(&mut line);
            // The receiver is gone if the server took too long.
            let _ = sender.send((read, line, output));
        });
        let Ok((Ok(_), line, output)) = receiver.recv_timeout(START_TIME_MAX) else {
            // The panic below is the news; a server that has ended already cannot be killed.
            let _ = child.kill();
            panic!("the server said nothing within {START_TIME_MAX:?}");
        };
        let address = line.trim_end().rsplit("http://").next().filter(|_| line.contains("http://"));
        let Some(address) = address.map(str::to_owned) else {
            let status = child.wait();
            panic!("the server did not start: {status:?}, first line {line:?}");
        };
        Self { child, address, _output: output }
    }

    /// The server's address, `http://HOST:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The server's process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Sends the process a signal, by its name without `SIG`.
    ///
    /// # Panics
    /// There is no such signal, or the process has ended.
    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.process());
        let status = Command::new("sh").args(["-c", &kill]).status().expect("the shell starts");
        assert!(status.success(), "{kill}: {status}");
    }

    /// What the process writes to its standard error, where the command that started it piped it.
    pub fn errors(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// Waits for the process to end by itself.
    ///
    /// # Panics
    /// The system does not tell.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("the process is this one's child")
    }

    /// A client of plain sockets.
    pub fn http(&self) -> Http {
        Http::new(&self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only for a process that has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The sizes of a small model, as flags of `synth`.
const SMALL_SIZES: &[(&str, &str)] = &[
    ("--layers", "1"),
    ("--hidden", "64"),
    ("--heads", "2"),
    ("--kv-heads", "1"),
    ("--head-dim", "32"),
    ("--feed-forward", "64"),
    ("--vocabulary", "700"),
    ("--context", "512"),
];

/// A small generated model; its file is removed when this is dropped.
#[derive(Debug)]
pub struct SyntheticModel(PathBuf);

impl SyntheticModel {
    /// Has `program` write a model of one layer to a file of this name and process; `arguments` are further flags of
    /// `synth`, which may name other sizes.
    ///
    /// # Panics
    /// The program does not write it.
    pub fn write(program: &str, name: &str, arguments: &[&str]) -> Self {
        let path = std::env::temp_dir().join(format!("lavalane-{name}-{}.gguf", std::process::id()));
        let mut command = Command::new(program);
        command.arg("synth").args(arguments);
        for (size, value) in SMALL_SIZES.iter().filter(|(size, _)| !arguments.contains(size)) {
            command.args([size, value]);
        }
        let output = command.arg(&path).output().expect("the program starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SyntheticModel {
    fn drop(&mut self) {
        // Whatever else went wrong, the file is in nobody's way.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The Python interpreter that has the client packages, or `None` after saying that the test is skipped.
fn python() -> Option<PathBuf> {
    let interpreter = root().join(".venv/bin/python");
    if interpreter.exists() {
        return Some(interpreter);
    }
    println!("skipped: the Python clients are not in .venv/ (`make python-clients` installs them)");
    None
}

/// Serves the default model once for each set of arguments and runs the tests of a module of this crate's
/// `python/` folder against those servers, whose addresses it finds in `LAVALANE_URL`, separated by spaces.
///
/// # Panics
/// A server does not start, or a test of the module fails.
pub fn check_python_module(program: &str, module: &str, servers: &[&[&str]]) {
    let (Some(model), Some(python)) = (find(ModelFile::SmolLm2), python()) else { return };
    let servers: Vec<Server> =
        servers.iter().map(|arguments| Server::start(program, &model, arguments)).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let status = Command::new(python)
        .args(["-B", "-m", "unittest", "--verbose", module])
        .current_dir(root().join("integration-tests/python"))
        .env("LAVALANE_URL", urls.join(" "))
        .status()
        .expect("Python starts");
    assert!(status.success(), "{module} failed: its tests are named above");
}
