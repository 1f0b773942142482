//! Resource usage of processes, read from `/proc`.

use std::fs;

/// Clock ticks per second in `/proc`; the same on every Linux that this runs on.
const TICKS: f64 = 100.0;
/// Bytes of a page, the unit of the kernel's socket memory.
const PAGE: f64 = 4096.0;

/// Resources used so far by one or several processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// CPU time in seconds.
    pub cpu: f64,
    /// Resident memory in bytes.
    pub resident: f64,
}

impl Usage {
    /// Usage of this process.
    pub fn now() -> Self {
        Self::of_one("self")
    }

    /// Usage of a process and all its descendants.
    pub fn of(pid: u32) -> Self {
        family(pid).iter().fold(Self::default(), |sum, pid| {
            let one = Self::of_one(&pid.to_string());
            Self { cpu: sum.cpu + one.cpu, resident: sum.resident + one.resident }
        })
    }

    /// Resets the memory peak of this process to its current resident memory.
    pub fn forget_peak() -> std::io::Result<()> {
        fs::write("/proc/self/clear_refs", "5")
    }

    /// Peak resident memory of this process in bytes.
    pub fn peak() -> f64 {
        field(&fs::read_to_string("/proc/self/status").unwrap_or_default(), "VmHWM:") * 1024.0
    }

    fn of_one(pid: &str) -> Self {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let stat = read("stat");
        let mut times = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11);
        let mut ticks = || times.next().and_then(|ticks| ticks.parse::<f64>().ok()).unwrap_or(0.0);
        Self { cpu: (ticks() + ticks()) / TICKS, resident: field(&read("status"), "VmRSS:") * 1024.0 }
    }
}

fn field(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0.0)
}

/// A process and all its descendants.
fn family(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(&parent) = all.get(next) {
        next += 1;
        for thread in fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    all
}

/// Limit of open files for this process and those that it starts.
pub fn files_limit() -> usize {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    field(&limits, "Max open files") as usize
}

/// Number of open files of a process, connections included.
pub fn open_files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |files| files.count())
}

/// Bytes that the kernel holds for all TCP sockets of the machine. They count in no process's memory.
pub fn socket_memory() -> f64 {
    let sockets = fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let tcp = sockets.lines().find(|line| line.starts_with("TCP:")).unwrap_or_default();
    tcp.split("mem ").nth(1).and_then(|pages| pages.trim().parse::<f64>().ok()).unwrap_or(0.0) * PAGE
}
