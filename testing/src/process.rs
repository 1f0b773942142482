use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::OnceLock;

use tempfile::{NamedTempFile, TempDir};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

/// The real server in a process of its own, with a folder for its data. Killed when dropped.
pub struct Process {
    data: TempDir,
    arguments: Vec<String>,
    child: Child,
    /// Kept open: a server whose output nobody reads must not stop.
    output: BufReader<ChildStdout>,
    address: String,
    log: NamedTempFile,
}

/// How a command ended.
#[derive(Debug)]
pub struct Exit {
    /// Its exit status.
    pub status: ExitStatus,
    /// What it printed.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
}

impl Process {
    /// Starts `tidings serve --dev` on a free port with further arguments, and waits until it serves.
    pub async fn serve(arguments: &[&str]) -> Self {
        let data = TempDir::new().expect("a folder for the data");
        Self::start(data, arguments.iter().map(|&argument| argument.to_owned()).collect()).await
    }

    /// The same, logging what the filter lets through.
    pub async fn serve_logging(filter: &str, arguments: &[&str]) -> Self {
        let arguments = [&["--log", filter], arguments].concat();
        Self::serve(&arguments).await
    }

    /// What it has logged since it was started.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log.path()).expect("the log is readable")
    }

    async fn start(data: TempDir, arguments: Vec<String>) -> Self {
        let log = NamedTempFile::new().expect("a file for the log");
        let errors = log.reopen().expect("the file is there");
        let mut child = Command::new(binary())
            .args(["serve", "--dev", "--listen", "127.0.0.1:0", "--data"])
            .arg(data.path())
            .args(&arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .kill_on_drop(true)
            .spawn()
            .expect("the binary starts");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line).await.expect("readable");
        let address = line.split("://").nth(1).unwrap_or_else(|| {
            let log = std::fs::read_to_string(log.path()).unwrap_or_default();
            panic!("no address in {line:?}; it says {log}")
        });
        let address = address.trim().to_owned();
        Self { data, arguments, child, output, address, log }
    }

    /// The server's address and a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Kills it at once, as a crash would.
    pub async fn kill(&mut self) {
        self.child.kill().await.expect("it was running");
    }

    /// Starts it again, on another port, with the same arguments and data.
    pub async fn restart(mut self) -> Self {
        // Killed already, perhaps.
        let _ = self.child.kill().await;
        Self::start(self.data, self.arguments).await
    }

    /// Where its data is.
    pub fn data(&self) -> &Path {
        self.data.path()
    }

    /// Sends it a signal, by its name without `SIG`.
    pub async fn signal(&self, name: &str) {
        let id = self.child.id().expect("it is running").to_string();
        let sent =
            Command::new("kill").args([&format!("-{name}"), &id]).status().await.expect("kill is there");
        assert!(sent.success());
    }

    /// Asks it to stop, and waits for its end.
    pub async fn terminate(mut self) -> ExitStatus {
        self.signal("TERM").await;
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).await.expect("readable");
        self.child.wait().await.expect("it ends")
    }

    /// Runs the binary to its end.
    pub async fn run(arguments: &[&str]) -> Exit {
        let output = Command::new(binary()).args(arguments).output().await.expect("the binary starts");
        let text = |bytes| String::from_utf8(bytes).expect("the binary prints text");
        Exit { status: output.status, stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// The `tidings` binary of the same build as the test, built if need be.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let test = std::env::current_exe().expect("a test has a path");
        let target = test.ancestors().nth(2).expect("a test lies in target/<profile>/deps").to_owned();
        let mut build = std::process::Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "tidings", "--bin", "tidings"]);
        if target.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo is there").success(), "the binary builds");
        target.join("tidings")
    })
}
