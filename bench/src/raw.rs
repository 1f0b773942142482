//! Sync latency of the raw disk, to compare appends with.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Times;

/// Results of overwriting an allocated file with a sync after each write.
#[derive(Clone, Copy, Debug)]
pub struct Raw {
    /// Median time of a 4 KiB write, in microseconds.
    pub p50: f64,
    /// 99th percentile of a 4 KiB write, in microseconds.
    pub p99: f64,
    /// 4 KiB writes per second.
    pub rate: f64,
    /// 64 KiB writes per second.
    pub rate_64k: f64,
}

impl Raw {
    /// Measures the disk under a folder, for the duration `each` per size.
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

    /// Prints the results for the head of a report.
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
