//! What the kernel tells of the process: its memory and its CPU time. Never: guesses; what is not told is `None`.

/// A `Name:   123 kB` line of /proc/self/status, in bytes.
fn status_bytes(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix(name))?;
    let number = line.strip_prefix(':')?.trim().strip_suffix("kB")?;
    Some(number.trim().parse::<u64>().ok()? * 1024)
}

/// Resident memory, bytes.
pub fn resident_bytes() -> Option<u64> {
    status_bytes("VmRSS")
}

/// Its peak, bytes.
pub fn peak_resident_bytes() -> Option<u64> {
    status_bytes("VmHWM")
}

/// User and system time, s.
pub fn cpu_seconds() -> Option<(f64, f64)> {
    // The kernel counts in hundredths of a second for user space, whatever its own tick is.
    const TICKS_PER_S: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let after_name = stat.rsplit(')').next()?;
    let mut fields = after_name.split_whitespace().skip(11);
    let mut seconds = || Some(fields.next()?.parse::<f64>().ok()? / TICKS_PER_S);
    Some((seconds()?, seconds()?))
}
