//! Files that only their owner may touch.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::token::hex;

/// Larger than any file of ours; what is larger is another file, named by mistake.
const MAX_BYTES: u64 = 16 << 20;

/// Tells one version of a file from another. Ours are replaced as a whole, so each has an inode of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &fs::Metadata) -> Self {
        // The change time moves with the mode too, and nobody can set it back.
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        Self { inode: metadata.ino(), bytes: metadata.len(), changed }
    }

    /// The file's present one, none if there is no file.
    pub(super) fn at(path: &Path) -> io::Result<Option<Self>> {
        match fs::metadata(path) {
            Ok(metadata) => Ok(Some(Self::of(&metadata))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The content, none if there is no file. A file that others may read or change is refused.
pub(super) fn read(path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    let shown = path.display();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => anyhow::bail!("cannot read {shown}: {error}"),
    };
    // Asked of the open file: the name may stand for another one by now.
    let metadata = file.metadata().with_context(|| format!("cannot read {shown}"))?;
    anyhow::ensure!(metadata.is_file(), "{shown} is not a file");
    let mode = metadata.mode() & 0o777;
    anyhow::ensure!(
        mode & 0o077 == 0,
        "{shown} has mode {mode:04o}, so others on this machine may use it: `chmod 600 {shown}` makes it private"
    );
    let mut content = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut content).with_context(|| format!("cannot read {shown}"))?;
    anyhow::ensure!(content.len() as u64 <= MAX_BYTES, "{shown} is larger than a file of keys can be");
    Ok(Some(content))
}

/// Replaces the content as a whole: whoever reads sees the old one or the new one, after a power cut too.
pub(super) fn replace(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let mut unique = [0; 8];
    getrandom::fill(&mut unique).map_err(|error| anyhow::anyhow!("the system gives no random bytes: {error}"))?;
    let new = beside(path, &format!("{}.new", hex(&unique)));
    let written = write_new(&new, content).and_then(|()| fs::rename(&new, path));
    if let Err(error) = written {
        let _ = fs::remove_file(&new);
        anyhow::bail!("cannot write {}: {error}", path.display());
    }
    File::open(parent(path))
        .and_then(|dir| dir.sync_all())
        .with_context(|| format!("cannot sync the directory of {}", path.display()))
}

/// Lets one process at a time change a file, until the answer is dropped. Makes the directory if there is none.
pub(super) fn lock(path: &Path) -> anyhow::Result<File> {
    let dir = parent(path);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|error| anyhow::anyhow!("cannot make the directory {}: {error}", dir.display()))?;
    // The file itself is replaced by others while one waits for it, so what is locked is another one.
    let lock = beside(path, "lock");
    let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(lock);
    let lock = lock.and_then(|file| file.lock().map(|()| file));
    lock.map_err(|error| anyhow::anyhow!("cannot lock {}: {error}", path.display()))
}

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_of_ours_is_private_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k.json");
        for content in [&b"one"[..], b"two"] {
            replace(&path, content).unwrap();
            assert_eq!(read(&path).unwrap().unwrap(), content);
        }
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_others_may_touch_is_refused_with_the_fix() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k");
        fs::write(&path, "x").unwrap();
        for mode in [0o640, 0o604, 0o620, 0o601, 0o666] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains("chmod 600"), "{error}");
        }
        assert!(read(&dir.path().join("none")).unwrap().is_none());
        assert!(read(dir.path()).is_err(), "a directory");
    }

    #[test]
    fn every_replacement_has_a_stamp_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k");
        assert_eq!(Stamp::at(&path).unwrap(), None);
        replace(&path, b"a").unwrap();
        let first = Stamp::at(&path).unwrap();
        replace(&path, b"b").unwrap();
        assert_ne!(Stamp::at(&path).unwrap(), first);
    }
}
