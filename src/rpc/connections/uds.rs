//! The Unix socket: its file and mode, files that an earlier server left behind, and files removed while the server
//! runs.

use super::BACKLOG;
use crate::complaints::Complaints;
use crate::locks::lock;
use rustix::fs::{self, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::sleep;

/// The socket file's mode: its owner and its group may connect, because workers share a group and not a user.
const MODE: u32 = 0o660;

/// How long a starting server waits for the lock of a folder. Nobody holds it that long in normal use.
const FOLDER_LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// How often a listener checks that its file is still there. Clearing a folder closes no socket, but afterwards no
/// client finds the server.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The files of the sockets that this process listens on.
static OWN_FILES: Mutex<Vec<SocketFile>> = Mutex::new(Vec::new());

/// The file of a socket: its path, and its device and inode, so that a server removes only its own file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    /// Removes the file, unless a successor has put its own socket there meanwhile. Does not wait for a folder lock
    /// that somebody else holds: this may be a runtime thread, which has other connections to serve.
    fn remove(&self) {
        let _lock = lock_folder(&self.path, Duration::ZERO);
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Takes the file off the list of this process's files.
    fn forget(&self) {
        lock(&OWN_FILES).retain(|own| own != self);
    }
}

/// Removes the files of all sockets of this process, which is about to end without dropping them.
pub fn remove_own_files() {
    let own = std::mem::take(&mut *lock(&OWN_FILES));
    own.iter().for_each(SocketFile::remove);
}

/// A listening Unix socket. Its file is removed with it, and put back if somebody else removes it.
#[derive(Debug)]
pub struct UdsListener {
    given: PathBuf,
    /// A path by which clients find the socket from any folder; `None` if that path is too long for a socket.
    absolute: Option<PathBuf>,
    bound: Mutex<Bound>,
    complaints: Complaints,
}

/// The socket that the listener uses now, and its file.
#[derive(Debug, Clone)]
struct Bound {
    listener: Arc<UnixListener>,
    file: SocketFile,
}

impl UdsListener {
    /// Listens at `path`. Replaces the file of a server that is gone, but not the file of a live one.
    ///
    /// # Errors
    /// When a live server listens at `path`, the path belongs to something else, or the system refuses.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let bound = Bound::bind(path, FOLDER_LOCK_TIMEOUT)?;
        let absolute = Some(bound.file.path.clone()).filter(|path| SocketAddrUnix::new(path).is_ok());
        Ok(Self { given: path.to_owned(), absolute, bound: Mutex::new(bound), complaints: Complaints::default() })
    }

    /// The socket's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.absolute.as_ref().unwrap_or(&self.given)
    }

    /// The next connection.
    ///
    /// # Errors
    /// What the system says.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        loop {
            let listener = Arc::clone(&lock(&self.bound).listener);
            tokio::select! {
                accepted = listener.accept() => return Ok(accepted?.0),
                () = sleep(FILE_CHECK_INTERVAL) => self.restore_file(),
            }
        }
    }

    /// Listens anew if the file is missing or belongs to a server that is gone. Anything else that took its place
    /// stays.
    fn restore_file(&self) {
        let file = lock(&self.bound).file.clone();
        let found = identity(&file.path);
        if found.as_ref().is_ok_and(|found| *found == file.identity) {
            return;
        }
        let complaint = self.complaints.next(Instant::now());
        // A starting server has bound its file but does not listen yet while it holds the lock. Whether a server
        // listens is checked only when a complaint is due, because that is seldom enough.
        let _lock = match lock_folder(&self.given, Duration::ZERO) {
            None if found.is_ok() => return,
            _ if found.is_ok() && complaint.is_none() => return,
            lock => lock,
        };
        let path = self.path().display();
        match Bound::bind(&self.given, Duration::ZERO) {
            Ok(bound) => {
                *lock(&self.bound) = bound;
                file.forget();
                tracing::warn!(%path, "the socket's file was removed; it has been created again");
            }
            Err(error) => {
                if let Some(more) = complaint {
                    tracing::error!(%path, %error, more, "the socket's file is missing: no client can find this server by it");
                }
            }
        }
    }
}

impl Bound {
    /// Listens at `path`. Waits at most `longest` for others who change the folder.
    fn bind(path: &Path, longest: Duration) -> io::Result<Self> {
        // If two servers start at once, the second would take the first's socket for a stale one until the first
        // listens.
        let _lock = lock_folder(path, longest);
        remove_stale(path)?;
        let socket = socket()?;
        net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        Self::listen(socket, path).inspect_err(|_| drop(std::fs::remove_file(path)))
    }

    fn listen(socket: OwnedFd, path: &Path) -> io::Result<Self> {
        // The mode is set before the socket listens; otherwise clients that only the umask lets in could connect
        // meanwhile.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(MODE))?;
        net::listen(&socket, BACKLOG as i32)?;
        let listener = Arc::new(UnixListener::from_std(socket.into())?);
        let file = SocketFile { path: std::path::absolute(path)?, identity: identity(path)? };
        lock(&OWN_FILES).push(file.clone());
        Ok(Self { listener, file })
    }
}

impl Drop for UdsListener {
    fn drop(&mut self) {
        let file = lock(&self.bound).file.clone();
        file.remove();
        file.forget();
    }
}

/// Takes the lock that servers hold while they check and change what lies in a folder. `None` if the file system has no
/// such locks, or somebody else keeps the lock for `longest`: a server must be able to start and end all the same.
fn lock_folder(path: &Path, longest: Duration) -> Option<OwnedFd> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = fs::open(folder, flags, Mode::empty()).ok()?;
    let started = Instant::now();
    loop {
        match fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(folder),
            Err(Errno::AGAIN | Errno::INTR) if started.elapsed() < longest => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(_) => return None,
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
    if path.is_dir() {
        let advice = format!("this is a folder; name a file in it, such as {}", path.join("croupier.sock").display());
        return Err(io::Error::new(ErrorKind::IsADirectory, advice));
    }
    if !meta.file_type().is_socket() {
        return Err(io::Error::new(ErrorKind::AlreadyExists, "the file exists and is not a socket; remove it"));
    }
    // Only connecting shows whether a server listens, because the file of a killed server remains.
    match connect(path) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path),
        // The backlog of a stalled server is full. That server still exists, and waiting for it could take for ever.
        Ok(()) | Err(Errno::AGAIN) => {
            Err(io::Error::new(ErrorKind::AddrInUse, "another server is listening on this socket"))
        }
        Err(e) => Err(e.into()),
    }
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn connect(path: &Path) -> Result<(), Errno> {
    net::connect(&socket()?, &SocketAddrUnix::new(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl UdsListener {
        fn bound(&self) -> Bound {
            lock(&self.bound).clone()
        }
    }

    #[tokio::test]
    async fn a_file_that_is_removed_comes_back_and_anothers_stays() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("socket");
        let listener = UdsListener::bind(&path).expect("nobody has it");
        let before = listener.bound().file;
        listener.restore_file();
        assert_eq!(listener.bound().file, before, "it is where it was");

        std::fs::remove_file(&path).expect("it is there");
        // A client that waits for a connection finds the file again.
        let connecting = async {
            while connect(&path).is_err() {
                sleep(FILE_CHECK_INTERVAL / 10).await;
            }
        };
        let (accepted, ()) = tokio::join!(listener.accept(), connecting);
        accepted.expect("a connection");
        let mode = std::fs::metadata(&path).expect("it is back").permissions().mode();
        assert_eq!((mode & 0o777, listener.path()), (MODE, &*path));
        assert!(!lock(&OWN_FILES).contains(&before) && lock(&OWN_FILES).contains(&listener.bound().file));
    }

    #[tokio::test]
    async fn what_has_the_place_of_a_file_stays_unless_it_is_dead() {
        let dir = tempfile::tempdir().expect("a folder");
        let instead = |name: &str, put: &dyn Fn(&Path)| {
            let path = dir.path().join(name);
            let listener = UdsListener::bind(&path).expect("nobody has it");
            std::fs::remove_file(&path).expect("it is there");
            put(&path);
            listener.restore_file();
            let is_own = identity(&path).is_ok_and(|found| found == listener.bound().file.identity);
            drop(listener);
            (is_own, path.exists())
        };
        let file = |path: &Path| std::fs::write(path, "another").expect("a file");
        assert_eq!(instead("file", &file), (false, true));
        let dead = |path: &Path| drop(std::os::unix::net::UnixListener::bind(path).expect("a socket"));
        assert_eq!(instead("dead", &dead), (true, false));
        let live = |path: &Path| {
            std::os::unix::net::UnixListener::bind(path).map(std::mem::forget).expect("a socket");
        };
        assert_eq!(instead("live", &live), (false, true));
        // A server that is starting and does not listen yet.
        let starts = |path: &Path| {
            dead(path);
            std::mem::forget(lock_folder(path, FOLDER_LOCK_TIMEOUT));
        };
        assert_eq!(instead("starts", &starts), (false, true));
    }

    /// All servers find the socket of a server that was killed.
    #[tokio::test]
    async fn of_servers_that_start_at_once_one_has_the_socket() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, runtime) = (dir.path().join("socket"), tokio::runtime::Handle::current());
        for _ in 0..100 {
            drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket to be left"));
            let starting = std::sync::Barrier::new(4);
            let start = || {
                let _runtime = runtime.enter();
                starting.wait();
                UdsListener::bind(&path)
            };
            let started = std::thread::scope(|scope| {
                let all = [(); 4].map(|()| scope.spawn(start));
                all.map(|one| one.join().expect("no panic"))
            });
            let (one, others): (Vec<_>, Vec<_>) = started.into_iter().partition(Result::is_ok);
            let one: Vec<UdsListener> = one.into_iter().flatten().collect();
            assert_eq!(one.len(), 1, "{others:?}");
            assert_eq!(identity(&path).expect("it is there"), one[0].bound().file.identity);
            assert!(others.iter().all(|other| other.as_ref().is_err_and(|e| e.kind() == ErrorKind::AddrInUse)));
        }
    }

    #[tokio::test]
    async fn own_files_are_removed_and_a_successors_is_not() {
        let dir = tempfile::tempdir().expect("a folder");
        let paths = ["mine", "taken", "closed"].map(|name| dir.path().join(name));
        let [mine, taken, closed] = paths.each_ref().map(|path| UdsListener::bind(path).expect("nobody has it"));
        std::fs::remove_file(&paths[1]).expect("it is there");
        let _successor = std::os::unix::net::UnixListener::bind(&paths[1]).expect("nobody has it");
        drop(closed);
        // Only the files of this test: other listeners live in the same process.
        let own: Vec<SocketFile> =
            lock(&OWN_FILES).iter().filter(|own| own.path.starts_with(dir.path())).cloned().collect();
        assert_eq!(own, [mine.bound().file, taken.bound().file]);
        own.iter().for_each(SocketFile::remove);
        assert_eq!(paths.each_ref().map(|path| path.exists()), [false, true, false]);
    }

    #[tokio::test]
    async fn a_path_is_told_as_it_is_found_from_anywhere() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("socket");
        let depth = std::env::current_dir().expect("a folder").components().count() - 1;
        let up = PathBuf::from_iter(std::iter::repeat_n("..", depth));
        let relative = up.join(path.strip_prefix("/").expect("an absolute one"));
        let listener = UdsListener::bind(&relative).expect("nobody has it");
        assert!(relative.is_relative() && listener.path().is_absolute());
        assert_eq!(identity(listener.path()).ok(), identity(&path).ok());

        // If the absolute path is too long for a socket, the given path is reported and bound again.
        let here = std::env::current_dir().expect("a folder");
        let detour = Path::new("..").join(here.file_name().expect("a name"));
        let is_socket = |path: &Path| SocketAddrUnix::new(path).is_ok();
        let longer = (1..30).map(|times| PathBuf::from_iter(std::iter::repeat_n(&detour, times)).join(&relative));
        let on_the_edge = |path: &PathBuf| is_socket(path) && !is_socket(&here.join(path));
        drop(listener);
        if let Some(given) = longer.into_iter().find(on_the_edge) {
            let listener = UdsListener::bind(&given).expect("nobody has it");
            std::fs::remove_file(&path).expect("it is there");
            listener.restore_file();
            assert!(listener.path() == given && connect(&given).is_ok());
        } else {
            eprintln!("no path is long enough from {}: not tried", here.display());
        }

        let refused = UdsListener::bind(dir.path()).expect_err("a folder").to_string();
        assert!(refused.contains("name a file in it") && refused.contains("/croupier.sock"), "{refused}");
    }

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
