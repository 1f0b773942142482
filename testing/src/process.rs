//! [`Process`]: the real `tidings` binary, started with a data folder of its own.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::OnceLock;

use tempfile::{NamedTempFile, TempDir};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

/// The real server in a process of its own, with a folder for its data. Killed when dropped.
pub struct Process {
    /// First field, so that the server ends before its folder is removed.
    child: Child,
    data: TempDir,
    launch: Launch,
    /// Kept open, so that the server can go on printing.
    output: BufReader<ChildStdout>,
    address: String,
    log: NamedTempFile,
}

/// How the server is started.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// Arguments after `tidings serve`.
    pub arguments: Vec<String>,
    /// Environment variables in addition to those of the test.
    pub variables: Vec<(String, String)>,
    /// Hard limit of open files and sockets; `None` for that of the test.
    pub open_files: Option<u32>,
}

impl Launch {
    /// Starts with arguments and environment variables.
    pub fn new(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let variables = variables.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
        Self {
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            variables: variables.collect(),
            open_files: None,
        }
    }
}

/// Result of a command.
#[derive(Debug)]
pub struct Exit {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Process {
    /// Starts `tidings serve --dev` on a free port with further arguments, and waits until it serves.
    pub async fn serve(arguments: &[&str]) -> Self {
        let data = TempDir::new().expect("a folder for the data");
        let folder = data.path().to_str().expect("a path in UTF-8").to_owned();
        let first = ["--dev", "--listen", "127.0.0.1:0", "--data", &folder];
        Self::start(data, Launch::new(&[&first, arguments].concat(), &[])).await
    }

    /// Starts `tidings serve` without `--dev` on a free port with a data folder, and waits until it serves.
    pub async fn serve_guarded(data: TempDir, arguments: &[&str]) -> Self {
        let folder = data.path().to_str().expect("a path in UTF-8").to_owned();
        let first = ["--listen", "127.0.0.1:0", "--data", &folder];
        Self::start(data, Launch::new(&[&first, arguments].concat(), &[])).await
    }

    /// Starts `tidings serve` with exactly these arguments in an empty folder, and waits until it serves.
    pub async fn launch(launch: Launch) -> Self {
        Self::start(TempDir::new().expect("a folder"), launch).await
    }

    /// Starts as [`Process::serve`] does, with a filter for logs.
    pub async fn serve_logging(filter: &str, arguments: &[&str]) -> Self {
        let arguments = [&["--log", filter], arguments].concat();
        Self::serve(&arguments).await
    }

    /// Everything logged since it was started.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log.path()).expect("the log is readable")
    }

    async fn start(data: TempDir, launch: Launch) -> Self {
        let log = NamedTempFile::new().expect("a file for the log");
        let errors = log.reopen().expect("the file is there");
        let mut command = match launch.open_files {
            None => Command::new(binary()),
            Some(most) => {
                let mut shell = Command::new("sh");
                // The soft limit is lower, so that the server has to raise it.
                let set = format!("ulimit -Sn {}; ulimit -Hn {most}; exec \"$@\"", most / 2);
                shell.args(["-c", &set, "sh"]).arg(binary());
                shell
            }
        };
        let mut child = command
            .arg("serve")
            .args(&launch.arguments)
            .envs(launch.variables.iter().map(|(name, value)| (name, value)))
            .current_dir(data.path())
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
        Self { data, launch, child, output, address, log }
    }

    /// The next line that it prints, after the first, which has the address.
    pub async fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).await.expect("readable");
        line.trim_end().to_owned()
    }

    /// URL of a path on the server.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Kills it at once, as a crash would.
    pub async fn kill(&mut self) {
        self.child.kill().await.expect("it was running");
    }

    /// Starts it again, on another port, with the same arguments and data.
    pub async fn restart(mut self) -> Self {
        // It may have been killed already.
        let _ = self.child.kill().await;
        Self::start(self.data, self.launch).await
    }

    /// Whether it is still running.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it can be asked").is_none()
    }

    /// Its data folder.
    pub fn data(&self) -> &Path {
        self.data.path()
    }

    /// Resident memory in bytes.
    pub fn memory(&self) -> u64 {
        let id = self.child.id().expect("it is running");
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("it is running");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = resident.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        kib.expect("the system tells") * 1024
    }

    /// Sends it a signal, by its name without `SIG`.
    pub async fn signal(&self, name: &str) {
        let id = self.child.id().expect("it is running").to_string();
        let sent =
            Command::new("kill").args([&format!("-{name}"), &id]).status().await.expect("kill is there");
        assert!(sent.success());
    }

    /// Stops it gracefully, waits for its end, and returns its folder. Fails if the exit status is not zero.
    pub async fn stop(self) -> TempDir {
        let (data, status) = self.end().await;
        assert!(status.success(), "it ends well, not with {status}");
        data
    }

    /// Stops it gracefully and returns its exit status.
    pub async fn terminate(self) -> ExitStatus {
        self.end().await.1
    }

    async fn end(mut self) -> (TempDir, ExitStatus) {
        self.signal("TERM").await;
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).await.expect("readable");
        let status = self.child.wait().await.expect("it ends");
        (self.data, status)
    }

    /// Runs the binary to completion.
    pub async fn run(arguments: &[&str]) -> Exit {
        Self::run_with(arguments, &[]).await
    }

    /// Runs the binary to completion, with environment variables.
    pub async fn run_with(arguments: &[&str], variables: &[(&str, &str)]) -> Exit {
        let mut command = Command::new(binary());
        command.args(arguments).envs(variables.iter().copied()).stdin(Stdio::null()).kill_on_drop(true);
        let output = command.output().await.expect("the binary starts");
        let text = |bytes| String::from_utf8(bytes).expect("the binary prints text");
        Exit { status: output.status, stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// The `tidings` binary of the same build as the test; built if needed.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let test = std::env::current_exe().expect("a test has a path");
        let target = test.ancestors().nth(2).expect("a test lies in target/<profile>/deps").to_owned();
        let mut build = std::process::Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "tidings", "--bin", "tidings"]);
        // Variables of cargo about the test's package would look like a change to some build scripts, which
        // would run again, now and in the next build outside.
        let own = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        for name in
            std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).filter(|name| own(name))
        {
            build.env_remove(name);
        }
        // The folder of the profile `dev` has another name, for history's sake.
        let folder = target.file_name().and_then(|name| name.to_str()).expect("a profile has a name");
        build.args(["--profile", if folder == "debug" { "dev" } else { folder }]);
        assert!(build.status().expect("cargo is there").success(), "the binary builds");
        target.join("tidings")
    })
}
