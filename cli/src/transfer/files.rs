//! Files that replace others only when they are complete and on the disk.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tempfile::NamedTempFile;

use super::{Result, cannot};

/// The name of the subfolder for the unfinished files of a folder. The subfolder exists only while it has files.
pub(crate) const UNFINISHED: &str = ".polyverbs-unfinished";
const PREFIX: &str = "part-";

/// A file that is being written. Dropping this deletes the file, unless [`keep`](Self::keep) has moved it to its final
/// name.
pub(crate) struct Part {
    file: NamedTempFile,
    // This field is dropped after the file: the subfolder is removed when it is empty.
    _apart: Option<Apart>,
}

impl Part {
    /// Creates a file in the subfolder for unfinished files of `folder`, where no other file can have its name.
    pub(super) fn within(folder: &Path) -> Result<Self> {
        loop {
            let apart = Apart(folder.join(UNFINISHED));
            match apart.make().and_then(|()| locked(&apart.0)) {
                Ok(Some(file)) => {
                    let _apart = Some(apart);
                    return Ok(Self { file, _apart });
                }
                // Another server removed the file before it was locked, or the subfolder before the file was made.
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::NotFound && folder.is_dir() => {}
                Err(error) => return Err(cannot("write", &apart.0, error).into()),
            }
        }
    }

    // Makes a file in the folder of the file that it will replace.
    fn beside(whole: &Path) -> Result<Self> {
        let file = create(folder_of(whole)).map_err(|error| cannot("write", whole, error))?;
        Ok(Self { file, _apart: None })
    }

    pub(super) fn file(&self) -> &File {
        self.file.as_file()
    }

    /// Syncs the file to the disk and moves it to its final name `whole`, where it replaces an existing file.
    pub(super) fn keep(self, whole: &Path) -> Result<()> {
        let Self { file, _apart } = self;
        let synced = file.as_file().sync_all();
        let named = synced.and_then(|()| Ok(file.persist(whole)?));
        let kept = named.and_then(|_| File::open(folder_of(whole))?.sync_all());
        Ok(kept.map_err(|error| cannot("write", whole, error))?)
    }
}

/// Limits the number of bytes that all files which are being received may have together.
pub(crate) struct Room {
    most: u64,
    taken: AtomicU64,
}

impl Room {
    pub(crate) fn new(most: u64) -> Self {
        let taken = AtomicU64::new(0);
        Self { most, taken }
    }

    /// Begins to count the bytes that one unfinished file takes of this room; [`Share::check`] refuses a file of more
    /// than `limit` bytes.
    pub(super) fn share(&self, limit: u64) -> Share<'_> {
        Share {
            room: self,
            limit,
            taken: 0,
        }
    }
}

/// Counts the bytes of a [`Room`] that one unfinished file has taken; dropping this returns them to the room.
pub(super) struct Share<'r> {
    room: &'r Room,
    limit: u64,
    taken: u64,
}

impl Share<'_> {
    /// Fails if a file of `length` bytes exceeds the limit for one file.
    pub(super) fn check(&self, length: u64) -> Result<()> {
        match self.limit {
            limit if length > limit => Err(format!("a file may have {limit} bytes there").into()),
            _ => Ok(()),
        }
    }

    /// Takes `bytes` more of the room for this file; fails if all unfinished files together would then have more bytes
    /// than the room permits.
    pub(super) fn take(&mut self, bytes: u64) -> Result<()> {
        let most = self.room.most;
        let more = |taken: u64| taken.checked_add(bytes).filter(|taken| *taken <= most);
        let taken = (self.room.taken).fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        taken.map_err(|_| format!("unfinished files may have {most} bytes together there"))?;
        self.taken += bytes;
        Ok(())
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.taken, Ordering::SeqCst);
    }
}

struct Apart(PathBuf);

impl Apart {
    fn make(&self) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && is_own(&self.0)? => Ok(()),
            made => made,
        }
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        // The removal fails if other servers have files in the folder.
        let _ = fs::remove_dir(&self.0);
    }
}

// Whether `apart` is a folder as this program makes it. The target of a link belongs to another program.
fn is_own(apart: &Path) -> io::Result<bool> {
    let there = fs::symlink_metadata(apart)?;
    Ok(there.is_dir() && there.mode() & 0o077 == 0)
}

fn create(folder: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new()
        .prefix(PREFIX)
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
}

// Makes a file that is locked as long as this process has it open: see `clean`. `None` if another server removed it before that.
fn locked(apart: &Path) -> io::Result<Option<NamedTempFile>> {
    let file = create(apart)?;
    file.as_file().lock()?;
    let has_name = file.as_file().metadata()?.nlink() == 1;
    Ok(has_name.then_some(file))
}

fn folder_of(file: &Path) -> &Path {
    let folder = file.parent().filter(|folder| folder != &Path::new(""));
    folder.unwrap_or(Path::new("."))
}

/// Removes the unfinished files that killed servers left in a folder.
pub(crate) fn clean(folder: &Path) -> Result<()> {
    let apart = Apart(folder.join(UNFINISHED));
    if !is_own(&apart.0).unwrap_or(false) {
        return Ok(());
    }
    let cannot = |error| cannot("clean", &apart.0, error);
    for entry in fs::read_dir(&apart.0).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        let is_part = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if is_file && is_part {
            remove_left(&entry.path()).map_err(cannot)?;
        }
    }
    Ok(())
}

fn remove_left(path: &Path) -> io::Result<()> {
    let removed = File::open(path).and_then(|file| {
        let is_left = file.try_lock().is_ok() && file.metadata()?.nlink() == 1;
        if is_left {
            fs::remove_file(path)
        } else {
            Ok(())
        }
    });
    match removed {
        // Another server was faster.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// The file that a copy is written to.
pub(crate) enum Target {
    /// A regular file, which replaces another one at this path when it is complete.
    File(Part, PathBuf),
    /// A file that cannot be replaced, such as a device file or a pipe.
    Stream(File),
}

impl Target {
    pub(crate) fn open(to: &Path) -> Result<Self> {
        let there = fs::metadata(to).ok();
        if there.as_ref().is_some_and(|there| !there.is_file()) {
            let stream = File::create(to).map_err(|error| cannot("write", to, error))?;
            return Ok(Self::Stream(stream));
        }
        if there.is_some() {
            let opened = fs::OpenOptions::new().write(true).open(to);
            opened.map_err(|error| cannot("write", to, error))?;
        }
        // If `to` is a symbolic link, its target is replaced.
        let whole = fs::canonicalize(to).unwrap_or_else(|_| to.to_owned());
        let part = Part::beside(&whole)?;
        if let Some(there) = there {
            let kept = part.file().set_permissions(there.permissions());
            kept.map_err(|error| cannot("write", to, error))?;
        }
        Ok(Self::File(part, whole))
    }

    pub(crate) fn file(&self) -> &File {
        match self {
            Self::File(part, _) => part.file(),
            Self::Stream(file) => file,
        }
    }

    pub(crate) fn keep(self) -> Result<()> {
        match self {
            Self::File(part, whole) => part.keep(&whole),
            Self::Stream(_) => Ok(()),
        }
    }
}
