//! Listens for connections, and gives them to the threads that serve them.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
#[cfg(unix)]
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

use crate::shared::Shared;
#[cfg(feature = "tls")]
use crate::tls::TlsAcceptor;

/// Connections that may wait to be accepted, as in Redis.
const BACKLOG: i32 = 511;

/// A new connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream, SocketAddr),
    #[cfg(feature = "tls")]
    Tls(TcpStream, SocketAddr, TlsAcceptor),
    #[cfg(unix)]
    Unix(UnixStream),
}

/// Listens on an address.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
    // A restarted server must not wait for connections of its predecessor.
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Listens on the path of a Unix socket, whose file gets these permissions if they are given.
#[cfg(unix)]
pub(crate) fn listen_unix(
    path: &std::path::Path,
    permissions: Option<u32>,
) -> io::Result<UnixListener> {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    // A socket that no process serves is left over from a crash. Other files stay: a connection to
    // them is refused as well.
    if let Ok(file) = std::fs::symlink_metadata(path) {
        let is_refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        if !file.file_type().is_socket() {
            let reason = "the path names a file that is not a socket";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, reason));
        }
        if UnixStream::connect(path).is_err_and(is_refused) {
            std::fs::remove_file(path)?;
        }
    }
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&socket2::SockAddr::unix(path)?)?;
    // Before the socket listens, so that no client connects that must not.
    if let Some(mode) = permissions {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Accepts connections and gives them to the workers in turn.
#[derive(Debug)]
pub(crate) struct Acceptor {
    pub(crate) shared: Arc<Shared>,
    pub(crate) listeners: Vec<TcpListener>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<(TlsAcceptor, Vec<TcpListener>)>,
    pub(crate) http: Option<TcpListener>,
    #[cfg(unix)]
    pub(crate) unix: Option<UnixListener>,
    pub(crate) senders: Vec<mpsc::UnboundedSender<Stream>>,
}

impl Acceptor {
    /// Accepts connections until the server stops.
    pub(crate) fn run(self) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let Ok(runtime) = builder.enable_all().build() else {
            return;
        };
        runtime.block_on(async {
            let (sender, mut accepted) = mpsc::unbounded_channel::<Stream>();
            for listener in self.listeners {
                accept_on(listener, sender.clone(), Stream::Tcp);
            }
            #[cfg(feature = "tls")]
            if let Some((acceptor, listeners)) = self.tls {
                for listener in listeners {
                    let acceptor = acceptor.clone();
                    let make = move |stream, peer| Stream::Tls(stream, peer, acceptor.clone());
                    accept_on(listener, sender.clone(), make);
                }
            }
            if let Some(listener) = self.http {
                tokio::spawn(crate::http::serve(listener, Arc::clone(&self.shared)));
            }
            #[cfg(unix)]
            if let Some(Ok(listener)) = self.unix.map(tokio::net::UnixListener::from_std) {
                let sender = sender.clone();
                tokio::spawn(async move {
                    loop {
                        match listener
                            .accept()
                            .await
                            .and_then(|(stream, _)| stream.into_std())
                        {
                            Ok(stream) => drop(sender.send(Stream::Unix(stream))),
                            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                        }
                    }
                });
            }
            let mut next = 0;
            while !self.shared.is_stopping() {
                tokio::select! {
                    () = self.shared.stop.notified() => break,
                    Some(stream) = accepted.recv() => {
                        if self.shared.clients().len() >= self.shared.options().maxclients {
                            self.shared.counters.rejected.fetch_add(1, Ordering::Relaxed);
                            reject(stream).await;
                            continue;
                        }
                        dispatch(&self.senders, &mut next, stream);
                    }
                }
            }
        });
    }
}

/// Hands a connection to the next thread, or to the one after it if that has ended.
fn dispatch(senders: &[mpsc::UnboundedSender<Stream>], next: &mut usize, mut stream: Stream) {
    for _ in senders {
        let sender = &senders[*next];
        *next = (*next + 1) % senders.len();
        match sender.send(stream) {
            Ok(()) => return,
            Err(refused) => stream = refused.0,
        }
    }
}

/// Accepts connections and sends them on as `make` makes them.
fn accept_on(
    listener: TcpListener,
    sender: mpsc::UnboundedSender<Stream>,
    make: impl Fn(TcpStream, SocketAddr) -> Stream + Send + 'static,
) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    tokio::spawn(async move {
        loop {
            let accepted = listener.accept().await;
            match accepted.and_then(|(stream, peer)| Ok((stream.into_std()?, peer))) {
                Ok((stream, peer)) => drop(sender.send(make(stream, peer))),
                // Out of descriptors: a connection has to end first.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    });
}

async fn reject(stream: Stream) {
    let text = b"-ERR max number of clients reached\r\n";
    match stream {
        Stream::Tcp(stream, _) => {
            if let Ok(mut stream) = tokio::net::TcpStream::from_std(stream) {
                let _ = stream.write_all(text).await;
            }
        }
        // A handshake for the sake of an error would cost too much.
        #[cfg(feature = "tls")]
        Stream::Tls(..) => {}
        #[cfg(unix)]
        Stream::Unix(stream) => {
            if let Ok(mut stream) = tokio::net::UnixStream::from_std(stream) {
                let _ = stream.write_all(text).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_go_to_the_threads_that_are_left() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connect = || Stream::Tcp(TcpStream::connect(address).unwrap(), address);
        let (senders, mut receivers): (Vec<_>, Vec<_>) =
            (0..3).map(|_| mpsc::unbounded_channel()).unzip();
        drop(receivers.remove(1));
        let mut next = 0;
        for _ in 0..4 {
            dispatch(&senders, &mut next, connect());
        }
        let mut got =
            |thread: usize| std::iter::from_fn(|| receivers[thread].try_recv().ok()).count();
        assert_eq!([got(0), got(1)], [2, 2]);
        // Without any, connections end.
        dispatch(&senders[1..2], &mut 0, connect());
    }
}
