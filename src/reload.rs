//! Things made of files that may change while the server runs: certificates, keys, tokens.
//!
//! The files are read every second or so instead of being watched: a secret of Kubernetes is replaced by moving a symbolic
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

/// How often files are looked at. A change is taken at the second look that sees it.
const INTERVAL: Duration = Duration::from_secs(1);
/// More is no certificate, key or list of tokens. The same bound as a Kubernetes Secret has.
const LARGEST: u64 = 1 << 20;

/// A file as it was read.
#[derive(Debug)]
pub struct File {
    /// Where it is.
    pub path: PathBuf,
    /// What is in it.
    pub bytes: Vec<u8>,
}

/// Makes a thing of its files, in the order of their paths, or tells every mistake in them.
pub type Make<T> = fn(&[File]) -> Result<T, Vec<String>>;

/// The thing that is in force.
#[derive(Debug)]
pub struct Reloaded<T> {
    current: RwLock<Arc<T>>,
}

/// What became of changed files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// They are in force.
    Taken,
    /// They are wrong; what was before is still in force.
    Refused(Vec<String>),
    /// Somebody asked, and they are those in force already.
    Same,
}

/// Looks whether files have changed.
#[derive(Debug)]
pub struct Watcher<T> {
    target: Arc<Reloaded<T>>,
    paths: Vec<PathBuf>,
    make: Make<T>,
    /// The state of the files that was taken or refused last.
    judged: Print,
    /// Whether it was taken.
    is_in_force: bool,
    /// The state at the last look.
    seen: Print,
}

/// A digest of what was read; nobody should hold keys and tokens in memory longer than it takes to use them. Without one,
/// why the files cannot be read.
type Print = Result<[u8; digest::SHA256_OUTPUT_LEN], Vec<String>>;

impl<T> Reloaded<T> {
    /// What is in force now. Who holds it keeps it, whatever comes after.
    #[must_use]
    pub fn current(&self) -> Arc<T> {
        // Nothing is half done under this lock, so a poisoned one is as good as any.
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Reads the files and makes the thing, to know whether that works.
///
/// # Errors
/// Every mistake.
pub fn check<T>(paths: &[PathBuf], make: Make<T>) -> Result<T, Vec<String>> {
    make(&read(paths)?)
}

/// Makes the thing, and what keeps it up to date.
///
/// # Errors
/// Every mistake in the files.
pub fn open<T>(paths: Vec<PathBuf>, make: Make<T>) -> Result<(Arc<Reloaded<T>>, Watcher<T>), Vec<String>> {
    let files = read(&paths)?;
    let target = Arc::new(Reloaded { current: RwLock::new(Arc::new(make(&files)?)) });
    let seen = Ok(print(&files));
    Ok((Arc::clone(&target), Watcher { target, paths, make, judged: seen.clone(), is_in_force: true, seen }))
}

impl<T: Send + Sync + 'static> Watcher<T> {
    /// Looks for ever, also whenever somebody asks; tells of every change, and whoever asked what there is.
    pub async fn run(mut self, mut requests: watch::Receiver<()>, tell: impl Fn(&T, Change)) {
        let mut interval = tokio::time::interval(INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_asked = tokio::select! {
                () = request(&mut requests) => true,
                _ = interval.tick() => false,
            };
            // Not on a thread that serves: a file may be on a disk that hangs.
            let looked = tokio::task::spawn_blocking(move || {
                let change = if is_asked { Some(self.look_now()) } else { self.look() };
                (self, change)
            });
            let (watcher, change) = match looked.await.map_err(JoinError::try_into_panic) {
                Ok(looked) => looked,
                Err(Ok(panic)) => resume_unwind(panic),
                // The process ends.
                Err(Err(_)) => return,
            };
            self = watcher;
            if let Some(change) = change {
                tell(&self.target.current(), change);
            }
        }
    }

    /// Takes or refuses files that differ from those judged last, once they have stayed the same from one look to the
    /// next: whoever replaces two files one by one is not caught in between.
    fn look(&mut self) -> Option<Change> {
        let before = self.seen.clone();
        let files = self.see();
        if self.seen != before || self.seen == self.judged {
            return None;
        }
        Some(self.judge(files))
    }

    /// The same for whoever says that the files are as they should be: without a second look, and wrong ones are told again.
    fn look_now(&mut self) -> Change {
        let files = self.see();
        if self.is_in_force && self.seen == self.judged {
            return Change::Same;
        }
        self.judge(files)
    }

    fn see(&mut self) -> Result<Vec<File>, Vec<String>> {
        let files = read(&self.paths);
        self.seen = files.as_ref().map(|files| print(files)).map_err(Clone::clone);
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

/// Until somebody asks; for ever once nobody is left who could.
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

/// One file, whole, that is kept up to date: a larger one than any of these can be is not read, nor a pipe.
///
/// # Errors
/// For people.
pub fn read_kept(path: &Path) -> Result<Vec<u8>, String> {
    // To open a pipe is to wait for who writes to it, maybe for ever; and these files are read again and again.
    if fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo()) {
        return Err(format!("{}: is a pipe, which can be read only once; write a file", path.display()));
    }
    read_one(path)
}

/// One file that is read once; a larger one than any of these can be is not.
///
/// # Errors
/// For people.
pub fn read_one(path: &Path) -> Result<Vec<u8>, String> {
    files::read(path, LARGEST).map_err(|problem| format!("{}: {problem}", path.display()))
}

fn print(files: &[File]) -> [u8; digest::SHA256_OUTPUT_LEN] {
    let mut context = digest::Context::new(&digest::SHA256);
    for file in files {
        // With its length: bytes that move from one file to the next are a change.
        context.update(&(file.bytes.len() as u64).to_le_bytes());
        context.update(&file.bytes);
    }
    let mut print = [0; digest::SHA256_OUTPUT_LEN];
    print.copy_from_slice(context.finish().as_ref());
    print
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two numbers that must be equal, as a key must fit its certificate.
    fn pair(files: &[File]) -> Result<u32, Vec<String>> {
        let number = |file: &File| {
            let text = String::from_utf8_lossy(&file.bytes);
            text.trim().parse::<u32>().map_err(|_| vec![format!("{text:?} is no number")])
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
        assert_eq!(watcher.look(), Some(Change::Refused(vec!["\"x\" is no number".to_owned()])));
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

    /// Nobody writes to it, so whoever opened it would wait for ever.
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
