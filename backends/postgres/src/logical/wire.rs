//! [`Wire`]: a connection that speaks the replication protocol, as far as one stream of changes needs it.

use std::io;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, SslNegotiation};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Bytes of one message, at most: a row of a table whose replica identity is the whole row.
const MESSAGE_BYTES: usize = 256 * 1024 * 1024;
/// Seconds from 1970 to 2000, where PostgreSQL begins to count.
const EPOCH_2000: u64 = 946_684_800;

/// A connection. Closed when dropped.
pub(crate) struct Wire {
    stream: Box<dyn Stream>,
    received: BytesMut,
    to_send: BytesMut,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// As whom, and to which database.
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) database: String,
}

/// What a stream of changes consists of.
pub(crate) enum Event {
    /// A message of the output plugin.
    Data(Bytes),
    /// Everything before this position was sent.
    Keepalive { end: u64, answer: bool },
}

/// Why a stream does not go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// The connection is lost, or was not made.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The server has refused something.
    #[error("{message}")]
    Refused { code: String, message: String },
    /// The server only replays what another writes.
    #[error("a standby")]
    Standby,
}

impl Wire {
    /// Connects to the first server of a configuration that can be written to.
    pub(crate) async fn connect(
        config: &Config,
        tls: &MakeRustlsConnect,
        login: &Login,
    ) -> Result<Self, WireError> {
        let mut last = WireError::Io(io::Error::new(io::ErrorKind::NotFound, "the URL names no host"));
        for (at, host) in config.get_hosts().iter().enumerate() {
            let ports = config.get_ports();
            let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
            match Self::connect_to(config, tls, login, (host, port)).await {
                Ok(mut wire) => match wire.ask("SELECT pg_is_in_recovery()").await? {
                    Some(no) if no == "f" => return Ok(wire),
                    _ => last = WireError::Standby,
                },
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn connect_to(
        config: &Config,
        tls: &MakeRustlsConnect,
        login: &Login,
        (host, port): (&Host, u16),
    ) -> Result<Self, WireError> {
        let stream: Box<dyn Stream> = match host {
            Host::Unix(folder) => {
                Box::new(UnixStream::connect(folder.join(format!(".s.PGSQL.{port}"))).await?)
            }
            Host::Tcp(name) => {
                encrypted(config, tls, name, TcpStream::connect((&**name, port)).await?).await?
            }
        };
        let mut wire = Self { stream, received: BytesMut::new(), to_send: BytesMut::new() };
        let application = config.get_application_name().unwrap_or("tidings");
        let mut parameters = vec![
            ("user", &*login.user),
            ("database", &*login.database),
            ("replication", "database"),
            ("client_encoding", "UTF8"),
            ("application_name", application),
        ];
        parameters.extend(config.get_options().map(|options| ("options", options)));
        frontend::startup_message(parameters, &mut wire.to_send)?;
        wire.log_in(&login.user, config.get_password()).await?;
        Ok(wire)
    }

    async fn log_in(&mut self, user: &str, password: Option<&[u8]>) -> Result<(), WireError> {
        let password =
            || password.ok_or_else(|| bad("the database asks for a password, and the URL has none"));
        let mut scram = None;
        self.flush().await?;
        loop {
            let (tag, mut body) = self.frame().await?;
            match tag {
                b'R' => match take_u32(&mut body)? {
                    0 => {}
                    3 => frontend::password_message(password()?, &mut self.to_send)?,
                    5 => {
                        let salt = *body.first_chunk().ok_or_else(|| bad("a salt is missing"))?;
                        let hash = md5_hash(user.as_bytes(), password()?, salt);
                        frontend::password_message(hash.as_bytes(), &mut self.to_send)?;
                    }
                    10 => {
                        if !body.split(|byte| *byte == 0).any(|name| name == SCRAM_SHA_256.as_bytes()) {
                            return Err(bad("the database offers no way to log in that is known").into());
                        }
                        let begun = ScramSha256::new(password()?, ChannelBinding::unsupported());
                        frontend::sasl_initial_response(SCRAM_SHA_256, begun.message(), &mut self.to_send)?;
                        scram = Some(begun);
                    }
                    11 => {
                        let scram = scram.as_mut().ok_or_else(|| bad("SCRAM was not begun"))?;
                        scram.update(&body)?;
                        frontend::sasl_response(scram.message(), &mut self.to_send)?;
                    }
                    12 => scram.as_mut().ok_or_else(|| bad("SCRAM was not begun"))?.finish(&body)?,
                    other => {
                        return Err(bad(&format!("the database asks for a login of kind {other}")).into());
                    }
                },
                b'E' => return Err(refused(&body)),
                b'Z' => return Ok(()),
                _ => {}
            }
            self.flush().await?;
        }
    }

    /// Asks a query; the first column of its first row.
    pub(crate) async fn ask(&mut self, query: &str) -> Result<Option<String>, WireError> {
        frontend::query(query, &mut self.to_send)?;
        self.flush().await?;
        let mut found = None;
        let mut error = None;
        loop {
            let (tag, mut body) = self.frame().await?;
            match tag {
                b'D' if found.is_none() && body.len() >= 6 => {
                    body.advance(2);
                    let length = usize::try_from(take_u32(&mut body)?).unwrap_or(usize::MAX);
                    found = body.get(..length).map(|text| String::from_utf8_lossy(text).into_owned());
                }
                b'E' => error = Some(refused(&body)),
                b'Z' => return error.map_or(Ok(found), Err),
                _ => {}
            }
        }
    }

    /// Begins the stream of a slot.
    pub(crate) async fn start(&mut self, command: &str) -> Result<(), WireError> {
        frontend::query(command, &mut self.to_send)?;
        self.flush().await?;
        loop {
            let (tag, body) = self.frame().await?;
            match tag {
                b'W' => return Ok(()),
                b'E' => return Err(refused(&body)),
                _ => {}
            }
        }
    }

    /// The next of the stream. Nothing is lost if the future is dropped.
    pub(crate) async fn next(&mut self) -> Result<Event, WireError> {
        loop {
            let (tag, mut body) = self.frame().await?;
            match tag {
                b'd' if body.len() >= 25 && body[0] == b'w' => return Ok(Event::Data(body.slice(25..))),
                b'd' if body.len() >= 18 && body[0] == b'k' => {
                    body.advance(1);
                    return Ok(Event::Keepalive { end: body.get_u64(), answer: body[8] != 0 });
                }
                b'E' => return Err(refused(&body)),
                b'c' | b'C' => {
                    return Err(
                        io::Error::new(io::ErrorKind::ConnectionAborted, "the stream has ended").into()
                    );
                }
                _ => {}
            }
        }
    }

    /// Whether the next of the stream is here already.
    pub(crate) fn has_next(&self) -> bool {
        self.frame_length().is_ok_and(|length| length.is_some_and(|length| self.received.len() >= length))
    }

    /// Says that everything before a position is stored.
    pub(crate) async fn confirm(&mut self, stored: u64, now: Duration) -> Result<(), WireError> {
        let micros = u64::try_from(now.saturating_sub(Duration::from_secs(EPOCH_2000)).as_micros());
        self.to_send.put_u8(b'd');
        self.to_send.put_u32(4 + 1 + 4 * 8 + 1);
        self.to_send.put_u8(b'r');
        for position in [stored; 3] {
            self.to_send.put_u64(position);
        }
        self.to_send.put_u64(micros.unwrap_or_default());
        self.to_send.put_u8(0);
        Ok(self.flush().await?)
    }

    async fn flush(&mut self) -> io::Result<()> {
        if !self.to_send.is_empty() {
            self.stream.write_all_buf(&mut self.to_send).await?;
            self.stream.flush().await?;
        }
        Ok(())
    }

    /// Length of the message that has begun to arrive.
    fn frame_length(&self) -> io::Result<Option<usize>> {
        let Some(length) = self.received.get(1..5) else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes([length[0], length[1], length[2], length[3]]));
        match length {
            Ok(length @ 4..=MESSAGE_BYTES) => Ok(Some(1 + length)),
            _ => Err(bad("a message is too large")),
        }
    }

    async fn frame(&mut self) -> io::Result<(u8, Bytes)> {
        loop {
            if let Some(length) = self.frame_length()?.filter(|length| self.received.len() >= *length) {
                let mut frame = self.received.split_to(length).freeze();
                let tag = frame[0];
                frame.advance(5);
                return Ok((tag, frame));
            }
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

async fn encrypted(
    config: &Config,
    tls: &MakeRustlsConnect,
    host: &str,
    mut stream: TcpStream,
) -> Result<Box<dyn Stream>, WireError> {
    stream.set_nodelay(true)?;
    if config.get_ssl_mode() == SslMode::Disable {
        return Ok(Box::new(stream));
    }
    if config.get_ssl_negotiation() != SslNegotiation::Direct {
        let mut request = BytesMut::new();
        frontend::ssl_request(&mut request);
        stream.write_all(&request).await?;
        match (stream.read_u8().await?, config.get_ssl_mode()) {
            (b'S', _) => {}
            (_, SslMode::Require) => return Err(bad("the database does not speak TLS").into()),
            _ => return Ok(Box::new(stream)),
        }
    }
    let mut tls = tls.clone();
    let connect = MakeTlsConnect::<TcpStream>::make_tls_connect(&mut tls, host)
        .map_err(|error| bad(&format!("TLS cannot be set up: {error}")))?;
    Ok(Box::new(connect.connect(stream).await?))
}

fn refused(body: &[u8]) -> WireError {
    let mut error = (String::new(), String::new());
    for field in body.split(|byte| *byte == 0) {
        let text = || String::from_utf8_lossy(&field[1..]).into_owned();
        match field.first() {
            Some(b'C') => error.0 = text(),
            Some(b'M') => error.1 = text(),
            _ => {}
        }
    }
    WireError::Refused { code: error.0, message: error.1 }
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn take_u32(body: &mut Bytes) -> io::Result<u32> {
    body.try_get_u32().map_err(|_| bad("a message is too short"))
}
