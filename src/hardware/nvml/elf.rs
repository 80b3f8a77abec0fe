//! Checks that a library file is complete. A truncated file loads, and crashes the process with SIGBUS at a missing
//! page.

use std::fs::File;
use std::path::Path;

use object::elf::{FileHeader64, SHT_NOBITS};
use object::read::elf::{FileHeader, ProgramHeader as _, SectionHeader as _};
use object::{Endianness, ReadCache, ReadRef};

/// `Err` describes what is missing. Files that are not 64-bit ELF are left to the loader.
pub fn check(path: &Path) -> Result<(), String> {
    let Ok(file) = File::open(path) else { return Ok(()) };
    let cache = ReadCache::new(file);
    let is_elf = (&cache).read_bytes_at(0, 4).is_ok_and(|magic| magic == b"\x7fELF");
    if !is_elf {
        return Ok(());
    }
    let (size, ends) = ends(&cache).map_err(|error| format!("it is cut off or damaged: {error}"))?;
    if ends > size {
        return Err(format!("it is cut off: its headers name {ends} bytes, and it has {size}"));
    }
    Ok(())
}

/// The size of the file, and the size that its headers require.
fn ends<'a>(data: impl ReadRef<'a>) -> Result<(u64, u64), String> {
    let text = |error: object::read::Error| error.to_string();
    let size = data.len().map_err(|()| "its size is unknown".to_owned())?;
    let header = FileHeader64::<Endianness>::parse(data).map_err(text)?;
    let endian = header.endian().map_err(text)?;
    let segments = header.program_headers(endian, data).map_err(text)?;
    let segments = segments.iter().map(|segment| (segment.p_offset(endian), segment.p_filesz(endian)));
    let sections = header.section_headers(endian, data).map_err(text)?;
    let sections = sections.iter().filter(|section| section.sh_type(endian) != SHT_NOBITS);
    let sections = sections.map(|section| (section.sh_offset(endian), section.sh_size(endian)));
    let ends = segments.chain(sections).map(|(offset, length): (u64, u64)| offset.saturating_add(length)).max();
    Ok((size, ends.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_truncated_file_is_detected() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("library.so");
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let long = own.len();
        for length in [5, 64, 4096, long / 2, long - 1] {
            std::fs::write(&path, &own[..length]).unwrap();
            assert!(check(&path).unwrap_err().contains("cut off"), "{length} of {long}");
        }
        std::fs::write(&path, &own).unwrap();
        assert_eq!(check(&path), Ok(()));
    }

    #[test]
    fn other_files_are_left_to_the_loader() {
        let directory = tempfile::tempdir().unwrap();
        for text in ["", "GROUP ( libc.so )"] {
            std::fs::write(directory.path().join("x"), text).unwrap();
            assert_eq!(check(&directory.path().join("x")), Ok(()));
        }
        assert_eq!(check(Path::new("/nonexistent")), Ok(()));
    }
}
