//! Resource usage of the process (memory, CPU time, open files) as metrics, read from `/proc`. Systems without
//! `/proc` get no such metrics.

use std::fs;

use tidings_engine::metrics::{Kind, Metrics, Name};

/// Registers metrics for memory, CPU time and open files. They are read each time the metrics are requested.
pub fn show(metrics: &Metrics) {
    let show = |name, help, kind, value: fn() -> Option<f64>| {
        if value().is_some() {
            metrics.compute(Name { name, help }, kind, &[], move || value().unwrap_or(f64::NAN));
        }
    };
    show(
        "tidings_process_resident_memory_bytes",
        "Resident memory of the process, in bytes.",
        Kind::Gauge,
        resident_bytes,
    );
    show(
        "tidings_process_cpu_seconds_total",
        "CPU time used by the process, user and system, in seconds.",
        Kind::Counter,
        cpu_seconds,
    );
    show("tidings_process_open_fds", "Open file descriptors, sockets included.", Kind::Gauge, open_files);
    show("tidings_process_max_fds", "Limit on open file descriptors.", Kind::Gauge, open_files_max);
    show("tidings_process_threads", "Threads of the process.", Kind::Gauge, threads);
}

/// Reads a number from `/proc/self/status`.
fn status(name: &str) -> Option<f64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

fn resident_bytes() -> Option<f64> {
    Some(status("VmRSS")? * 1024.0)
}

fn threads() -> Option<f64> {
    status("Threads")
}

fn cpu_seconds() -> Option<f64> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    // The process name, in parentheses, may contain any character. After it, user and system time are the 12th and
    // 13th field.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let ticks: f64 = fields.next()?.parse::<f64>().ok()? + fields.next()?.parse::<f64>().ok()?;
    Some(ticks / rustix::param::clock_ticks_per_second() as f64)
}

fn open_files() -> Option<f64> {
    // Reading the directory opens one more descriptor, which is subtracted.
    Some((fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1)) as f64)
}

fn open_files_max() -> Option<f64> {
    let text = fs::read_to_string("/proc/self/limits").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}
