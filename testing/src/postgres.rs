//! [`Postgres`]: a private PostgreSQL, on a free port of the loopback interface, gone when it is dropped.
//!
//! Most tests share one server and have a database each ([`database`]); a test that stops, kills or pauses the server has
//! one of its own ([`Postgres::start`]). The server runs as an unprivileged user, since PostgreSQL refuses to run as root.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;
use tokio::sync::OnceCell;

/// Whether what is committed is synced to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// It is, as in production.
    On,
    /// It is not, which is faster and enough for tests that do not cut the power.
    Off,
}

/// A PostgreSQL server.
pub struct Postgres {
    folder: PathBuf,
    port: u16,
    fsync: Fsync,
    /// Ends the server and removes its folder when this process ends, however it ends.
    guard: Guard,
}

/// A process that waits for the end of its standard input, then stops the server.
struct Guard {
    child: Child,
    input: Option<ChildStdin>,
}

/// A database of its own on the shared server.
pub struct TestDatabase {
    /// URL of the database.
    pub url: String,
    name: String,
    server: &'static Postgres,
}

/// How a server is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Connections are cut, and everything is written.
    Fast,
    /// At once, as in a crash; the next start recovers.
    Immediate,
}

static SHARED: OnceCell<Postgres> = OnceCell::const_new();

/// The server that the tests of this process share.
pub async fn shared() -> &'static Postgres {
    SHARED.get_or_init(|| async { Postgres::start(Fsync::Off).await }).await
}

/// A new and empty database on the shared server.
pub async fn database() -> TestDatabase {
    shared().await.database().await
}

impl TestDatabase {
    /// A connection to it.
    pub async fn client(&self) -> tokio_postgres::Client {
        self.server.client(&self.name).await
    }

    /// A connection to it as another user.
    pub async fn client_as(&self, user: &str) -> tokio_postgres::Client {
        connect(&self.server.url_as(user, &self.name)).await
    }

    /// The server.
    pub fn server(&self) -> &'static Postgres {
        self.server
    }
}

impl Postgres {
    /// Starts an empty server and waits until it answers.
    pub async fn start(fsync: Fsync) -> Self {
        blocking(move || Self::create(fsync)).await
    }

    fn create(fsync: Fsync) -> Self {
        let folder = private_folder();
        let data = folder.join("data");
        let mut init = program("initdb");
        init.args([
            "--auth=trust",
            "--username=postgres",
            "--no-sync",
            "--no-instructions",
            "--encoding=UTF8",
        ]);
        run(init.arg("--locale=C.UTF-8").arg("-D").arg(&data));
        let settings = "listen_addresses = '127.0.0.1'\nmax_connections = 200\nshared_buffers = 32MB\n\
            wal_level = logical\nmax_wal_senders = 50\nmax_replication_slots = 50\nmax_prepared_transactions = 10\n\
            timezone = UTC\nautovacuum_naptime = 1h\nlog_min_messages = warning\nlog_min_error_statement = panic\n";
        let mut file =
            fs::OpenOptions::new().append(true).open(data.join("postgresql.conf")).expect("a file");
        file.write_all(settings.as_bytes()).expect("it is ours");
        let guard = Guard::over(&folder);
        let server = Self { folder, port: free_port(), fsync, guard };
        run(&mut server.start_command());
        server
    }

    /// A standby of this server, which streams from it and on which every commit waits from now on.
    pub async fn synchronous_standby(&self) -> Self {
        let (from, fsync) = (self.port, self.fsync);
        let standby = blocking(move || {
            let folder = private_folder();
            let mut copy = program("pg_basebackup");
            copy.args(["-h", "127.0.0.1", "-U", "postgres", "-X", "stream", "-c", "fast", "-R", "-p"]);
            run(copy.arg(from.to_string()).arg("-D").arg(folder.join("data")));
            let guard = Guard::over(&folder);
            let server = Self { folder, port: free_port(), fsync, guard };
            run(&mut server.start_command());
            server
        })
        .await;
        let sql = self.client("postgres").await;
        sql.batch_execute("ALTER SYSTEM SET synchronous_standby_names = '*'").await.expect("it is set");
        sql.batch_execute("SELECT pg_reload_conf()").await.expect("it is read again");
        let synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        crate::eventually("the standby is synchronous", async || {
            sql.query_one(synchronous, &[]).await.expect("a number").get::<_, i64>(0) == 1
        })
        .await;
        standby
    }

    /// A new and empty database.
    pub async fn database(&'static self) -> TestDatabase {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        // Template databases cannot be copied by two at a time.
        static CREATING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        let _one_at_a_time = CREATING.lock().await;
        let client = self.client("postgres").await;
        client.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("a database is created");
        TestDatabase { url: self.url(&name), name, server: self }
    }

    /// URL of a database, for the superuser.
    pub fn url(&self, database: &str) -> String {
        self.url_as("postgres", database)
    }

    /// URL of a database, for a user.
    pub fn url_as(&self, user: &str, database: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/{database}", self.port)
    }

    /// A connection to a database.
    pub async fn client(&self, database: &str) -> tokio_postgres::Client {
        connect(&self.url(database)).await
    }

    /// Stops the server.
    pub async fn stop(&self, how: Stop) {
        let mode = match how {
            Stop::Fast => "fast",
            Stop::Immediate => "immediate",
        };
        let mut control = self.control();
        control.args(["stop", "-w", "-m", mode]);
        blocking(move || run(&mut control)).await;
    }

    /// Starts the server again, on the same port.
    pub async fn start_again(&self) {
        let mut start = self.start_command();
        blocking(move || run(&mut start)).await;
    }

    /// Stops the server and starts it again.
    pub async fn restart(&self, how: Stop) {
        self.stop(how).await;
        self.start_again().await;
    }

    /// Holds all its processes still: it neither answers nor closes its connections.
    pub fn pause(&self) {
        self.signal("STOP");
    }

    /// Lets it go on after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.signal("CONT");
    }

    /// Copies the data of the stopped server, to go back to it with [`go_back`](Self::go_back).
    pub async fn keep_copy(&self) {
        let (from, to) = (self.folder.join("data"), self.folder.join("copy"));
        blocking(move || run(Command::new("cp").arg("-a").arg(from).arg(to))).await;
    }

    /// Puts the copy in the place of the stopped server's data.
    pub async fn go_back(&self) {
        let (copy, data) = (self.folder.join("copy"), self.folder.join("data"));
        blocking(move || {
            fs::remove_dir_all(&data).expect("it is ours");
            fs::rename(copy, data).expect("it is ours");
        })
        .await;
    }

    /// Makes the server speak TLS from its next start, with a certificate and a key in PEM.
    pub async fn use_certificate(&self, certificate: &str, key: &str) {
        let data = self.folder.join("data");
        for (name, text) in [("server.crt", certificate), ("server.key", key)] {
            let file = data.join(name);
            fs::write(&file, text).expect("it is ours");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("it is ours");
            if let Some((user, group)) = unprivileged() {
                chown(&file, Some(user), Some(group)).expect("root gives files away");
            }
        }
        let mut settings =
            fs::OpenOptions::new().append(true).open(data.join("postgresql.conf")).expect("a file");
        settings.write_all(b"ssl = on\n").expect("it is ours");
    }

    /// Asks a user for the password, from now on.
    pub async fn demand_password(&self, user: &str) {
        let file = self.folder.join("data/pg_hba.conf");
        let rules = fs::read_to_string(&file).expect("it is ours");
        let rule = format!("host all {user} 127.0.0.1/32 scram-sha-256\n{rules}");
        fs::write(&file, rule).expect("it is ours");
        self.client("postgres")
            .await
            .batch_execute("SELECT pg_reload_conf()")
            .await
            .expect("it is read again");
    }

    /// Port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Makes the stopped server start as a standby, of nobody.
    pub async fn become_standby(&self) {
        let file = self.folder.join("data/standby.signal");
        fs::write(&file, "").expect("it is ours");
    }

    /// Makes the standby the primary.
    pub async fn promote(&self) {
        let mut control = self.control();
        control.args(["promote", "-w"]);
        blocking(move || run(&mut control)).await;
    }

    fn start_command(&self) -> Command {
        let fsync = if self.fsync == Fsync::On { "on" } else { "off" };
        let options =
            format!("-p {} -c unix_socket_directories={} -c fsync={fsync}", self.port, self.folder.display());
        let log = self.folder.join("log");
        let mut control = self.control();
        control.args(["start", "-w", "-t", "60", "-o", &options, "-l"]).arg(log);
        control
    }

    fn control(&self) -> Command {
        let mut control = program("pg_ctl");
        control.arg("-D").arg(self.folder.join("data"));
        control
    }

    fn signal(&self, name: &str) {
        let file = fs::read_to_string(self.folder.join("data/postmaster.pid")).expect("it is running");
        let main = file.lines().next().expect("the file has its process").to_owned();
        let children =
            Command::new("ps").args(["-o", "pid=", "--ppid", &main]).output().expect("ps is there");
        let children = String::from_utf8(children.stdout).expect("numbers");
        let mut kill = Command::new("kill");
        kill.arg(format!("-{name}")).arg(&main).args(children.split_whitespace());
        // A child may have ended meanwhile.
        let _ = kill.status().expect("kill is there");
    }
}

impl Guard {
    fn over(folder: &Path) -> Self {
        let script =
            r#"trap '' INT TERM; cat >/dev/null; "$0" -D "$1/data" -m immediate -s stop; rm -rf "$1""#;
        let control = binaries().join("pg_ctl");
        let mut command = as_unprivileged("sh");
        command.args(["-c", script]).arg(control).arg(folder);
        command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("a shell starts");
        let input = child.stdin.take();
        Self { child, input }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // A paused server would not stop.
        if self.folder.join("data/postmaster.pid").exists() {
            self.resume();
        }
        drop(self.guard.input.take());
        // The shell stops the server.
        let _ = self.guard.child.wait();
    }
}

/// A connection to a database by its URL. Ends when it is dropped.
pub async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) =
        tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("the database answers");
    tokio::spawn(connection);
    client
}

/// An empty folder that belongs to the user under which servers run.
fn private_folder() -> PathBuf {
    let folder = TempDir::with_prefix("tidings-postgres-").expect("a folder").keep();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("the folder is ours");
    if let Some((user, group)) = unprivileged() {
        chown(&folder, Some(user), Some(group)).expect("root gives folders away");
    }
    folder
}

/// Runs a program that takes a while, without holding up other tasks.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("it ends well")
}

fn run(command: &mut Command) {
    // Not piped: the server would keep the pipe open.
    let log = tempfile::NamedTempFile::new().expect("a file");
    let file = || log.reopen().expect("the file is there");
    let status = command.current_dir("/").stdin(Stdio::null()).stdout(file()).stderr(file()).status();
    let status = status.unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    assert!(status.success(), "{command:?}: {}", fs::read_to_string(log.path()).unwrap_or_default());
}

/// One of PostgreSQL's own programs, run as an unprivileged user.
fn program(name: &str) -> Command {
    as_unprivileged(binaries().join(name))
}

fn as_unprivileged(program: impl AsRef<std::ffi::OsStr>) -> Command {
    match unprivileged() {
        None => Command::new(program),
        Some((user, group)) => {
            let mut command = Command::new("setpriv");
            command.arg(format!("--reuid={user}")).arg(format!("--regid={group}")).arg("--clear-groups");
            command.arg("--").arg(program);
            command
        }
    }
}

/// User and group to run as, if this process is root: `postgres`, which the package has made.
fn unprivileged() -> Option<(u32, u32)> {
    if fs::metadata("/proc/self").expect("a Linux system").uid() != 0 {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("a list of users");
    let user = users.lines().find(|line| line.starts_with("postgres:")).expect("the user `postgres`");
    let mut fields = user.split(':').skip(2).map(|field| field.parse().expect("a number"));
    Some((fields.next().expect("a user"), fields.next().expect("a group")))
}

/// Folder of the newest PostgreSQL that is installed.
fn binaries() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let versions = fs::read_dir("/usr/lib/postgresql")
            .expect("PostgreSQL 15 or later is installed; scripts/install-test-tools does it");
        let newest = versions
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
            .filter(|version| Path::new(&format!("/usr/lib/postgresql/{version}/bin/initdb")).exists())
            .max()
            .expect("a version of PostgreSQL");
        assert!(newest >= 15, "PostgreSQL {newest} is too old");
        PathBuf::from(format!("/usr/lib/postgresql/{newest}/bin"))
    })
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound").port()
}
