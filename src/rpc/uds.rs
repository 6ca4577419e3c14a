//! The Unix socket: its file, its mode, and what an earlier server left behind.

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::net::{UnixListener, UnixStream};

/// The owner and its group may connect: workers share a group, not a user.
const MODE: u32 = 0o660;

/// A listening Unix socket whose file goes with it.
#[derive(Debug)]
pub struct UdsListener {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode, so that only the own file is removed.
    file: (u64, u64),
}

impl UdsListener {
    /// Listens at `path`. The file of a server that is gone is replaced, that of a live one is not.
    ///
    /// # Errors
    /// When a server listens there, something else has the name, or the system refuses.
    pub fn bind(path: &Path) -> io::Result<Self> {
        remove_stale(path)?;
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(MODE))?;
        let file = identity(path)?;
        Ok(Self { listener, path: path.to_owned(), file })
    }

    /// Its file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next connection.
    ///
    /// # Errors
    /// What the system says.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.listener.accept().await?.0)
    }
}

impl Drop for UdsListener {
    fn drop(&mut self) {
        // A successor may have put its own socket there meanwhile.
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let meta = std::fs::symlink_metadata(path)?;
    Ok((meta.dev(), meta.ino()))
}

fn remove_stale(path: &Path) -> io::Result<()> {
    let meta = match std::fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    if !meta.file_type().is_socket() {
        return Err(io::Error::new(ErrorKind::AlreadyExists, "the file exists and is not a socket; remove it"));
    }
    // Only connecting tells whether somebody listens: the file outlives a server that was killed.
    match connect(path) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path),
        // A server that stands still has no room for one more. It is there all the same, and waiting for it would take for ever.
        Ok(()) | Err(Errno::AGAIN) => {
            Err(io::Error::new(ErrorKind::AddrInUse, "another server listens on this socket"))
        }
        Err(e) => Err(e.into()),
    }
}

fn connect(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_stands_still_is_there() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("socket");
        let flags = SocketFlags::CLOEXEC;
        let listener = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a socket");
        net::bind(&listener, &SocketAddrUnix::new(&path).expect("an address")).expect("bound");
        net::listen(&listener, 0).expect("it listens");
        let waiting = std::os::unix::net::UnixStream::connect(&path).expect("the only place");
        assert_eq!(connect(&path), Err(Errno::AGAIN));
        assert_eq!(remove_stale(&path).expect_err("it is in use").kind(), ErrorKind::AddrInUse);
        drop((waiting, listener));
        remove_stale(&path).expect("it is gone");
        assert!(!path.exists());
    }
}
