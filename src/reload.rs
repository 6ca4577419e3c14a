//! Reloads values made from files that may change while the server runs: certificates, keys, tokens.
//!
//! The files are read every second or so instead of being watched. A Kubernetes secret is replaced by moving a symbolic
//! link one directory up, of which a watch on the file itself never hears.

use crate::files;
use ring::digest;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio::time::MissedTickBehavior;

/// How often the files are checked. A change is taken at the second look that sees it.
const INTERVAL: Duration = Duration::from_secs(1);
/// Most bytes of a file. No certificate, key or list of tokens is larger. A Kubernetes Secret has the same bound.
const LARGEST: u64 = 1 << 20;

/// A file as it was read.
#[derive(Debug)]
pub struct File {
    /// The path of the file.
    pub path: PathBuf,
    /// The content of the file.
    pub bytes: Vec<u8>,
}

/// Makes a value from its files, in the order of their paths, or returns every mistake in them.
pub type Make<T> = fn(&[File]) -> Result<T, Vec<String>>;

/// The value that is in force.
#[derive(Debug)]
pub struct Reloaded<T> {
    current: RwLock<Arc<T>>,
}

/// What happened to changed files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The files are in force.
    Taken,
    /// The files are wrong. What was in force before still is.
    Refused(Vec<String>),
    /// Somebody asked for a reload, but the files are already in force.
    Same,
}

/// Checks whether files have changed.
#[derive(Debug)]
pub struct Watcher<T> {
    target: Arc<Reloaded<T>>,
    paths: Vec<PathBuf>,
    make: Make<T>,
    /// The state of the files that was last taken or refused.
    judged: Fingerprint,
    /// Whether that state was taken.
    is_in_force: bool,
    /// The state at the last look.
    seen: Fingerprint,
}

/// A digest of the files' contents, because keys and tokens should not stay in memory longer than they are used; or why
/// the files cannot be read.
type Fingerprint = Result<[u8; digest::SHA256_OUTPUT_LEN], Vec<String>>;

impl<T> Reloaded<T> {
    /// The value in force now. A caller may keep using it, whatever comes after.
    #[must_use]
    pub fn current(&self) -> Arc<T> {
        // Nothing is half done under this lock, so a poisoned lock may be used.
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Reads the files and makes the value, to see whether that works.
///
/// # Errors
/// Every mistake.
pub fn check<T>(paths: &[PathBuf], make: Make<T>) -> Result<T, Vec<String>> {
    make(&read(paths)?)
}

/// Makes the value, and the watcher that keeps it up to date.
///
/// # Errors
/// Every mistake in the files.
pub fn open<T>(paths: Vec<PathBuf>, make: Make<T>) -> Result<(Arc<Reloaded<T>>, Watcher<T>), Vec<String>> {
    let files = read(&paths)?;
    let target = Arc::new(Reloaded { current: RwLock::new(Arc::new(make(&files)?)) });
    let seen = Ok(fingerprint(&files));
    Ok((Arc::clone(&target), Watcher { target, paths, make, judged: seen.clone(), is_in_force: true, seen }))
}

impl<T: Send + Sync + 'static> Watcher<T> {
    /// Checks the files for ever, at intervals and whenever somebody asks. Calls `tell` for every change, and for every
    /// request.
    pub async fn run(mut self, mut requests: watch::Receiver<()>, tell: impl Fn(&T, Change)) {
        let mut interval = tokio::time::interval(INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_asked = tokio::select! {
                () = request(&mut requests) => true,
                _ = interval.tick() => false,
            };
            // The files are not read on a thread that serves, because they may be on a disk that hangs.
            let looked = tokio::task::spawn_blocking(move || {
                let change = if is_asked { Some(self.look_now()) } else { self.look() };
                (self, change)
            });
            let (watcher, change) = match looked.await.map_err(JoinError::try_into_panic) {
                Ok(looked) => looked,
                Err(Ok(panic)) => resume_unwind(panic),
                // The runtime is shutting down.
                Err(Err(_)) => return,
            };
            self = watcher;
            if let Some(change) = change {
                tell(&self.target.current(), change);
            }
        }
    }

    /// Takes or refuses files that differ from the state judged last, once they have stayed the same from one look to
    /// the next. So somebody who replaces two files one by one is not caught in between.
    fn look(&mut self) -> Option<Change> {
        let before = self.seen.clone();
        let files = self.see();
        if self.seen != before || self.seen == self.judged {
            return None;
        }
        Some(self.judge(files))
    }

    /// The same for somebody who says that the files are ready: it does not wait for a second look, and reports wrong
    /// files again.
    fn look_now(&mut self) -> Change {
        let files = self.see();
        if self.is_in_force && self.seen == self.judged {
            return Change::Same;
        }
        self.judge(files)
    }

    fn see(&mut self) -> Result<Vec<File>, Vec<String>> {
        let files = read(&self.paths);
        self.seen = files.as_ref().map(|files| fingerprint(files)).map_err(Clone::clone);
        files
    }

    fn judge(&mut self, files: Result<Vec<File>, Vec<String>>) -> Change {
        self.judged = self.seen.clone();
        let made = files.and_then(|files| (self.make)(&files));
        self.is_in_force = made.is_ok();
        match made {
            Ok(made) => {
                *self.target.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(made);
                Change::Taken
            }
            Err(problems) => Change::Refused(problems),
        }
    }
}

/// Waits until somebody asks; for ever once nobody is left who could ask.
async fn request(requests: &mut watch::Receiver<()>) {
    if requests.changed().await.is_err() {
        std::future::pending().await
    }
}

fn read(paths: &[PathBuf]) -> Result<Vec<File>, Vec<String>> {
    let (mut files, mut problems) = (Vec::new(), Vec::new());
    for path in paths {
        match read_kept(path) {
            Ok(bytes) => files.push(File { path: path.clone(), bytes }),
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() { Ok(files) } else { Err(problems) }
}

/// Reads one whole file that is kept up to date. Refuses pipes, and files that are larger than any of these can be.
///
/// # Errors
/// A message for people.
pub fn read_kept(path: &Path) -> Result<Vec<u8>, String> {
    // Opening a pipe waits for its writer, maybe for ever; and these files are read again and again.
    if fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo()) {
        return Err(format!("{}: is a pipe, which can be read only once; use a regular file", path.display()));
    }
    read_one(path)
}

/// Reads one whole file that is read only once. Refuses files that are larger than any of these can be.
///
/// # Errors
/// A message for people.
pub fn read_one(path: &Path) -> Result<Vec<u8>, String> {
    files::read(path, LARGEST).map_err(|problem| format!("{}: {problem}", path.display()))
}

fn fingerprint(files: &[File]) -> [u8; digest::SHA256_OUTPUT_LEN] {
    let mut context = digest::Context::new(&digest::SHA256);
    for file in files {
        // The length is part of the digest, so that moving bytes from one file to the next counts as a change.
        context.update(&(file.bytes.len() as u64).to_le_bytes());
        context.update(&file.bytes);
    }
    let mut fingerprint = [0; digest::SHA256_OUTPUT_LEN];
    fingerprint.copy_from_slice(context.finish().as_ref());
    fingerprint
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two numbers that must be equal, as a key must match its certificate.
    fn pair(files: &[File]) -> Result<u32, Vec<String>> {
        let number = |file: &File| {
            let text = String::from_utf8_lossy(&file.bytes);
            text.trim().parse::<u32>().map_err(|_| vec![format!("{text:?} is not a number")])
        };
        let (one, other) = (number(&files[0])?, number(&files[1])?);
        if one == other { Ok(one) } else { Err(vec!["they differ".to_owned()]) }
    }

    fn write(dir: &Path, one: &str, other: &str) -> Vec<PathBuf> {
        let paths = vec![dir.join("one"), dir.join("other")];
        std::fs::write(&paths[0], one).expect("a file");
        std::fs::write(&paths[1], other).expect("a file");
        paths
    }

    #[test]
    fn a_good_change_is_taken_and_a_bad_one_is_refused_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let (thing, mut watcher) = open(write(dir.path(), "1", "1"), pair).expect("equal");
        let held = thing.current();
        assert_eq!((watcher.look(), watcher.look()), (None, None));
        write(dir.path(), "2", "2");
        assert_eq!((watcher.look(), *thing.current()), (None, 1), "it may still be changing");
        assert_eq!((watcher.look(), *thing.current()), (Some(Change::Taken), 2));
        write(dir.path(), "3", "x");
        assert_eq!(watcher.look(), None);
        assert_eq!(watcher.look(), Some(Change::Refused(vec!["\"x\" is not a number".to_owned()])));
        assert_eq!((watcher.look(), *thing.current()), (None, 2));
        std::fs::remove_file(dir.path().join("one")).expect("it was there");
        assert_eq!(watcher.look(), None);
        assert!(matches!(watcher.look(), Some(Change::Refused(why)) if why[0].contains("cannot be read")));
        write(dir.path(), "2", "2");
        assert_eq!((watcher.look(), watcher.look(), watcher.look()), (None, Some(Change::Taken), None));
        assert_eq!(*held, 1, "who holds the first keeps it");
    }

    #[test]
    fn who_asks_is_told_at_once_and_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let (thing, mut watcher) = open(write(dir.path(), "1", "1"), pair).expect("equal");
        assert_eq!(watcher.look_now(), Change::Same);
        write(dir.path(), "2", "2");
        assert_eq!((watcher.look_now(), *thing.current()), (Change::Taken, 2));
        assert_eq!((watcher.look(), watcher.look_now()), (None, Change::Same));
        write(dir.path(), "2", "3");
        let wrong = Change::Refused(vec!["they differ".to_owned()]);
        assert_eq!((watcher.look_now(), watcher.look_now()), (wrong.clone(), wrong), "it is not put right by asking");
        assert_eq!((watcher.look(), watcher.look(), *thing.current()), (None, None, 2));
    }

    /// Nobody writes to the pipe, so opening it would wait forever.
    #[test]
    fn a_file_that_becomes_a_pipe_is_refused_until_it_is_a_file_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let (_, mut watcher) = open(write(dir.path(), "1", "1"), pair).expect("equal");
        let one = dir.path().join("one");
        fs::remove_file(&one).expect("it was there");
        assert!(std::process::Command::new("mkfifo").arg(&one).status().expect("mkfifo runs").success());
        assert!(matches!(watcher.look_now(), Change::Refused(why) if why[0].contains("is a pipe")));
        fs::remove_file(&one).expect("it is there");
        write(dir.path(), "2", "2");
        assert_eq!(watcher.look_now(), Change::Taken);
    }

    #[tokio::test]
    async fn a_look_is_asked_for_until_nobody_is_left_who_could() {
        let (sender, mut requests) = watch::channel(());
        sender.send_replace(());
        request(&mut requests).await;
        drop(sender);
        let never = tokio::time::timeout(Duration::from_millis(50), request(&mut requests)).await;
        never.expect_err("whose sender is gone does not ask without end");
    }

    #[test]
    fn files_replaced_one_by_one_are_never_judged_in_between() {
        let dir = tempfile::tempdir().expect("a directory");
        let (thing, mut watcher) = open(write(dir.path(), "1", "1"), pair).expect("equal");
        write(dir.path(), "2", "1");
        assert_eq!(watcher.look(), None);
        write(dir.path(), "2", "2");
        assert_eq!((watcher.look(), watcher.look()), (None, Some(Change::Taken)));
        assert_eq!(*thing.current(), 2);
    }

    #[test]
    fn a_moved_link_is_a_change() {
        let dir = tempfile::tempdir().expect("a directory");
        let (old, new) = (dir.path().join("..1"), dir.path().join("..2"));
        let link = dir.path().join("..data");
        for (folder, number) in [(&old, "1"), (&new, "2")] {
            std::fs::create_dir(folder).expect("a folder");
            write(folder, number, number);
        }
        std::os::unix::fs::symlink(&old, &link).expect("a link");
        let (thing, mut watcher) = open(vec![link.join("one"), link.join("other")], pair).expect("equal");
        let next = dir.path().join("..tmp");
        std::os::unix::fs::symlink(&new, &next).expect("a link");
        std::fs::rename(&next, &link).expect("as the kubelet does it");
        assert_eq!((watcher.look(), watcher.look()), (None, Some(Change::Taken)));
        assert_eq!(*thing.current(), 2);
    }

    #[test]
    fn every_file_that_cannot_be_read_is_told() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("large");
        std::fs::write(&path, vec![b'x'; LARGEST as usize + 1]).expect("a file");
        let problems = open(vec![dir.path().join("none"), path], pair).expect_err("neither can be read");
        assert_eq!(problems.len(), 2);
        assert!(
            problems[0].contains("cannot be read") && problems[1].contains("more than 1048576 bytes"),
            "{problems:?}"
        );
    }
}
