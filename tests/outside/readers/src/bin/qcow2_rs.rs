// SPDX-License-Identifier: Apache-2.0
//! Writes the disk in a qcow2 file to the standard output, as the crate qcow2-rs reads it.
//!
//! The crate treats every backing file as qcow2; this program reads ranges of a raw one.

use qcow2_rs::{dev::Qcow2DevParams, meta::MappingSource};
use qcow2_rs::{sync_io::Qcow2IoSync, utils::qcow2_alloc_dev_sync};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::{error::Error, fs::File, path::PathBuf};

const TABLE_CACHE: Option<(u8, usize)> = Some((9, 1 << 16)); // slices of 512 bytes

fn main() -> Result<(), Box<dyn Error>> {
    let path = PathBuf::from(std::env::args_os().nth(1).ok_or("IMAGE")?);
    let params = Qcow2DevParams::new(9, TABLE_CACHE, TABLE_CACHE, true, false);
    let file = Qcow2IoSync::new(&path, true, false);
    let (disk, backing) = qcow2_alloc_dev_sync(&path, file, &params).map_err(|e| format!("{e:?}"))?;
    let mut backing = backing.map(File::open).transpose()?;
    futures::executor::block_on(async {
        let (size, step) = (disk.info.virtual_size(), disk.info.cluster_size());
        disk.qcow2_prep_io().await.map_err(|e| format!("{e:?}"))?;
        for at in (0..size).step_by(step) {
            let mut data = vec![0u8; (size - at).min(step as u64) as usize];
            let mapping = disk.get_mapping(at).await.map_err(|e| format!("{e:?}"))?;
            match (mapping.source, &mut backing) {
                (MappingSource::Backing, Some(raw)) => {
                    raw.seek(SeekFrom::Start(at))?;
                    let mut found = Vec::new();
                    raw.take(data.len() as u64).read_to_end(&mut found)?;
                    data[..found.len()].copy_from_slice(&found);
                }
                _ => {
                    let done = disk.read_at(&mut data, at).await.map_err(|e| format!("{e:?}"))?;
                    if done != data.len() {
                        return Err(format!("{done} of {} bytes at {at}", data.len()).into());
                    }
                }
            }
            io::stdout().write_all(&data)?;
        }
        Ok(())
    })
}
