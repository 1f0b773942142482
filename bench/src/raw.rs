//! The disk by itself: what an append that waits for a sync is set beside.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Times;

/// Overwriting a file that has its blocks, synced each time.
#[derive(Clone, Copy, Debug)]
pub struct Raw {
    /// The middle time of 4 KiB, in microseconds.
    pub p50: f64,
    /// The time that one in a hundred of them exceeds, in microseconds.
    pub p99: f64,
    /// How many 4 KiB in a second.
    pub rate: f64,
    /// How many 64 KiB in a second.
    pub rate_64k: f64,
}

impl Raw {
    /// Measures the disk under a folder, so long for each of the two sizes.
    pub fn measure(folder: &Path, each: Duration) -> io::Result<Self> {
        let path = folder.join("raw");
        let file = File::create(&path)?;
        file.write_all_at(&vec![0; 64 << 20], 0)?;
        file.sync_all()?;
        let mut small = overwrite(&file, 4096, each)?;
        let large = overwrite(&file, 64 << 10, each)?;
        std::fs::remove_file(path)?;
        Ok(Self {
            p50: small.quantile(0.5),
            p99: small.quantile(0.99),
            rate: small.rate(),
            rate_64k: large.rate(),
        })
    }

    /// Prints it, for the head of a report.
    pub fn print(&self) {
        println!(
            "- raw overwrite + fdatasync, 4 KiB: p50 {:.0} us, p99 {:.0} us, {:.0}/s",
            self.p50, self.p99, self.rate
        );
        println!("- raw overwrite + fdatasync, 64 KiB: {:.0}/s", self.rate_64k);
    }
}

fn overwrite(file: &File, bytes: usize, lasting: Duration) -> io::Result<Times> {
    let (block, mut times) = (vec![7; bytes], Times::default());
    let start = Instant::now();
    let mut offset = 0;
    while start.elapsed() < lasting {
        times.time(|| file.write_all_at(&block, offset).and_then(|()| file.sync_data()))?;
        offset = (offset + bytes as u64) % (32 << 20);
    }
    Ok(times)
}
