//! Detects, before a program runs, that the dynamic linker will not load this project's libraries for it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, FileHeader64};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::read::{ReadCache, ReadRef as _};
use rustix::process::{getegid, geteuid};

use crate::libraries::{CM, VERBS};

/// Returns why a program will not load this project's libraries, with a remedy; `None` if it will, or if that cannot be
/// found out.
pub(super) fn obstacle(program: &Path) -> Option<String> {
    // A script can name a script, as often as the kernel follows it, in a first line of this length at most.
    const SCRIPTS: usize = 5;
    const LINE: u64 = 256;
    let mut file = program.to_owned();
    for _ in 0..SCRIPTS {
        // A user may be allowed to run a program and not to read it.
        let contents = File::open(&file).ok().map(ReadCache::new);
        let head = contents.as_ref().and_then(|all| {
            let length = all.len().ok()?.min(LINE);
            all.read_bytes_at(0, length).ok()
        });
        if let Some(interpreter) = head.and_then(interpreter_of_script) {
            file = interpreter;
            continue;
        }
        let format = || format(contents.as_ref()?, head?, &file);
        let why = privileges(&file).or_else(format)?;
        return Some(format!("{} {why}", file.display()));
    }
    None
}

fn interpreter_of_script(bytes: &[u8]) -> Option<PathBuf> {
    let line = bytes
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let line = line.trim_ascii_start();
    let name = line.split(u8::is_ascii_whitespace).next()?;
    Some(OsStr::from_bytes(name).into())
}

// The dynamic linker ignores its variables where a program gets privileges that the user does not have.
fn privileges(file: &Path) -> Option<String> {
    let about = fs::metadata(file).ok()?;
    let is_set = |bit| about.mode() & bit != 0;
    let other_user = is_set(0o4000) && about.uid() != geteuid().as_raw();
    let other_group = is_set(0o2000) && about.gid() != getegid().as_raw();
    let has_capabilities = || {
        let found = rustix::fs::getxattr(file, "security.capability", &mut [0; 64]);
        !geteuid().is_root() && found.is_ok()
    };
    let why = if other_user {
        "is setuid"
    } else if other_group {
        "is setgid"
    } else if has_capabilities() {
        "has file capabilities"
    } else {
        return None;
    };
    Some(format!(
        "{why}, so the system loads only its own libraries for it: run a copy of it, which has no privileges"
    ))
}

fn format(contents: &ReadCache<File>, head: &[u8], file: &Path) -> Option<String> {
    const CLASS_32: u8 = 1;
    if head.starts_with(b"\x7fELF") && head.get(4) == Some(&CLASS_32) {
        return Some(
            "is a program of 32 bits, and our libraries have 64: build it for 64 bits".into(),
        );
    }
    let header = FileHeader64::<Endianness>::parse(contents).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, contents).ok()?;
    let interpreter = segments
        .iter()
        .find_map(|one| one.interpreter(endian, contents).ok()?);
    let Some(interpreter) = interpreter else {
        return Some("is linked statically and loads no libraries: link it with the shared libibverbs and librdmacm".into());
    };
    let linker = Path::new(OsStr::from_bytes(interpreter)).file_name()?;
    if !linker.as_bytes().starts_with(b"ld-linux") {
        return Some(format!(
            "is linked with another C library, which {} loads: link it with the GNU C library",
            Path::new(OsStr::from_bytes(interpreter)).display()
        ));
    }
    let found = first_elsewhere(contents, file)?;
    Some(format!(
        "finds {} before ours: remove its RPATH (chrpath -d), or link it with -Wl,--enable-new-dtags and without a path to the library",
        found.display()
    ))
}

/// Returns the library that a program finds in place of this project's, because it is found before `LD_LIBRARY_PATH` is
/// searched: needed by a path, or in a folder of an `RPATH` (which has no effect next to a `RUNPATH`). `None` if there is
/// none.
fn first_elsewhere(contents: &ReadCache<File>, file: &Path) -> Option<PathBuf> {
    let header = FileHeader64::<Endianness>::parse(contents).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, contents).ok()?;
    let table = sections.dynamic_table(endian, contents).ok()?;
    let texts = |tag| {
        let entries = table.iter().filter(move |one| one.tag == tag);
        entries.filter_map(|one| table.string(one).ok())
    };
    let needed: Vec<&Path> = texts(DT_NEEDED)
        .map(|name| Path::new(OsStr::from_bytes(name)))
        .filter(|name| {
            name.file_name()
                .is_some_and(|name| name == VERBS || name == CM)
        })
        .collect();
    let by_path = needed.iter().find(|name| name.components().count() > 1);
    if let Some(path) = by_path {
        return Some(path.to_path_buf());
    }
    let rpath = texts(DT_RPATH)
        .next()
        .filter(|_| texts(DT_RUNPATH).next().is_none())?;
    let folders = rpath
        .split(|byte| *byte == b':')
        .map(|folder| expanded(folder, file));
    let mut found = folders.flat_map(|folder| needed.iter().map(move |name| folder.join(name)));
    found.find(|library| library.exists())
}

/// Returns a folder of an `RPATH`, with `$ORIGIN` replaced by the program's own folder.
fn expanded(folder: &[u8], file: &Path) -> PathBuf {
    let rest = [&b"$ORIGIN"[..], b"${ORIGIN}"]
        .iter()
        .find_map(|name| folder.strip_prefix(*name));
    let Some(rest) = rest else {
        return OsStr::from_bytes(folder).into();
    };
    let own = fs::canonicalize(file).unwrap_or_default();
    let mut path = own.parent().map_or_else(OsString::new, |own| own.into());
    path.push(OsStr::from_bytes(rest));
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_as_its_interpreter() {
        let within = tempfile::tempdir().unwrap();
        let [program, script] = ["program", "script"].map(|name| within.path().join(name));
        let mut header = [0; 64];
        header[..5].copy_from_slice(b"\x7fELF\x01");
        fs::write(&program, header).unwrap();
        fs::write(&script, format!("#! {} -e\n", program.display())).unwrap();
        let why = obstacle(&script).unwrap();
        assert!(
            why.starts_with(program.to_str().unwrap()) && why.contains("32 bits"),
            "{why}"
        );
        fs::write(&program, "text").unwrap();
        assert_eq!(obstacle(&script), None);
    }

    #[test]
    fn a_folder_may_begin_with_the_program_s_own() {
        let shell = Path::new("/bin/sh");
        let own = shell.canonicalize().unwrap();
        let own = own.parent().unwrap().to_path_buf();
        assert_eq!(expanded(b"$ORIGIN/../lib", shell), own.join("../lib"));
        assert_eq!(expanded(b"${ORIGIN}", shell), own);
        assert_eq!(expanded(b"/opt/lib", shell), Path::new("/opt/lib"));
    }
}
