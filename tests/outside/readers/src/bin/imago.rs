// SPDX-License-Identifier: Apache-2.0
//! Writes the disk in a qcow2 file to the standard output, as the crate imago reads it.

use imago::{file::File, qcow2::Qcow2, storage::StorageOpenOptions, Storage};
use imago::{FormatAccess, FormatDriverBuilder, PermissiveImplicitOpenGate};
use std::io::{self, Write};

const PIECE_BYTES: usize = 1 << 20;

fn main() -> io::Result<()> {
    let mut words = std::env::args_os().skip(1);
    let mut image = Qcow2::<File>::builder_path(words.next().expect("IMAGE [DATA_FILE]"));
    if let Some(path) = words.next() {
        image = image.data_file(Some(File::open(StorageOpenOptions::new().filename(path))?));
    }
    let disk = FormatAccess::new(image.open(PermissiveImplicitOpenGate::default())?);
    let mut data = vec![0u8; PIECE_BYTES];
    for at in (0..disk.size()).step_by(PIECE_BYTES) {
        let length = (disk.size() - at).min(PIECE_BYTES as u64) as usize;
        disk.read(&mut data[..length], at)?;
        io::stdout().write_all(&data[..length])?;
    }
    Ok(())
}
