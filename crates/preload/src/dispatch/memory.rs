//! What memory each system call takes: which argument names it, which way its bytes go, and how many they are.
//!
//! Promises: every call of x86_64 Linux that names memory by its arguments alone, as far as programs of ours use them; those that name it by structures
//! (vectors, messages, sets of files, lengths that lie in memory themselves) are `vectors`', `named`'s and `bounce`'s own. Never: looks at memory.

use libc::c_long;

/// Which way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// The kernel reads it.
    In,
    /// It writes it, all or nothing.
    Out,
    /// It reads and writes it.
    Both,
}

/// How many bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bytes {
    /// So many.
    Fixed(u32),
    /// As many as an argument says, times this.
    Times(u8, u32),
    /// Up to as many as an argument says, times the second; what was written is the answer times the second.
    Answered(u8, u32),
    /// The same of an argument that is C's int: a count below zero is the kernel's to refuse.
    Counted(u8, u32),
    /// Up to a zero.
    Text,
    /// A page, or up to the zero or the end of the page that comes later, if that is less.
    Page,
    /// A type, and behind it as many as an argument says; what was written is as many as the answer says.
    Message(u8),
    /// So many pollfds as an argument says, of which the kernel writes what was seen only.
    Polled(u8),
    /// An ioctl's argument: what its number says.
    Ioctl,
}

impl Bytes {
    /// Which argument a call cuts its answer by, and the unit of both.
    pub fn answered(self) -> Option<(u8, u32)> {
        match self {
            Bytes::Answered(arg, by) | Bytes::Counted(arg, by) => Some((arg, by)),
            _ => None,
        }
    }
}

/// One piece of memory.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Which argument names it.
    pub arg: u8,
    /// See there.
    pub way: Way,
    /// See there.
    pub bytes: Bytes,
}

const fn of(arg: u8, way: Way, bytes: Bytes) -> Piece {
    Piece { arg, way, bytes }
}

const fn text(arg: u8) -> Piece {
    of(arg, Way::In, Bytes::Text)
}

const fn reads(arg: u8, bytes: u32) -> Piece {
    of(arg, Way::In, Bytes::Fixed(bytes))
}

const fn writes(arg: u8, bytes: u32) -> Piece {
    of(arg, Way::Out, Bytes::Fixed(bytes))
}

const fn both(arg: u8, bytes: u32) -> Piece {
    of(arg, Way::Both, Bytes::Fixed(bytes))
}

const fn reads_len(arg: u8, len: u8) -> Piece {
    of(arg, Way::In, Bytes::Times(len, 1))
}

const fn writes_len(arg: u8, len: u8) -> Piece {
    of(arg, Way::Out, Bytes::Times(len, 1))
}

const fn answers(arg: u8, len: u8) -> Piece {
    of(arg, Way::Out, Bytes::Answered(len, 1))
}

const fn counts(arg: u8, len: u8) -> Piece {
    of(arg, Way::Out, Bytes::Counted(len, 1))
}

macro_rules! table {
    ($($($number:ident)|+ => $pieces:expr;)*) => {
        /// The memory of a call; none if it is not known.
        pub fn of_call(number: c_long) -> Option<&'static [Piece]> {
            Some(match number {
                $($(libc::$number)|+ => { const PIECES: &[Piece] = &$pieces; PIECES })*
                _ => return None,
            })
        }
    };
}

const STAT: u32 = 144;
const USAGE: u32 = 144;
const INFO: u32 = 128;

table! {
    SYS_open | SYS_access | SYS_chdir | SYS_mkdir | SYS_rmdir | SYS_creat | SYS_unlink | SYS_chmod | SYS_chown | SYS_lchown | SYS_truncate | SYS_mknod
        | SYS_chroot | SYS_acct | SYS_swapon | SYS_swapoff | SYS_umount2 | SYS_uselib | SYS_memfd_create | SYS_mq_unlink => [text(0)];
    SYS_stat | SYS_lstat => [text(0), writes(1, STAT)];
    SYS_fstat => [writes(1, STAT)];
    SYS_poll => [of(0, Way::Both, Bytes::Polled(1))];
    SYS_ppoll => [of(0, Way::Both, Bytes::Polled(1)), both(2, 16)];
    SYS_ioctl => [of(2, Way::Both, Bytes::Ioctl)];
    SYS_pipe | SYS_pipe2 => [writes(0, 8)];
    SYS_select => [of(1, Way::Both, Bytes::Times(0, 0)), of(2, Way::Both, Bytes::Times(0, 0)), of(3, Way::Both, Bytes::Times(0, 0)), both(4, 16)];
    SYS_pselect6 => [of(1, Way::Both, Bytes::Times(0, 0)), of(2, Way::Both, Bytes::Times(0, 0)), of(3, Way::Both, Bytes::Times(0, 0)), both(4, 16)];
    SYS_nanosleep => [reads(0, 16), both(1, 16)];
    SYS_clock_nanosleep => [reads(2, 16), both(3, 16)];
    SYS_getitimer => [writes(1, 32)];
    SYS_setitimer => [reads(1, 32), writes(2, 32)];
    SYS_sendfile => [both(2, 8)];
    SYS_splice | SYS_copy_file_range => [both(1, 8), both(3, 8)];
    SYS_connect | SYS_bind => [reads_len(1, 2)];
    SYS_socketpair => [writes(3, 8)];
    SYS_setsockopt => [reads_len(3, 4)];
    SYS_wait4 => [both(1, 4), both(3, USAGE)];
    SYS_waitid => [both(2, INFO), both(4, USAGE)];
    SYS_uname => [writes(0, 390)];
    SYS_semop => [of(1, Way::In, Bytes::Times(2, 6))];
    SYS_semtimedop => [of(1, Way::In, Bytes::Times(2, 6)), reads(3, 16)];
    SYS_shmctl | SYS_msgctl => [both(2, 120)];
    SYS_msgsnd => [of(1, Way::In, Bytes::Message(2))];
    SYS_msgrcv => [of(1, Way::Out, Bytes::Message(2))];
    SYS_getdents | SYS_getdents64 => [answers(1, 2)];
    SYS_getcwd => [answers(0, 1)];
    SYS_rename | SYS_link | SYS_symlink | SYS_pivot_root => [text(0), text(1)];
    SYS_readlink => [text(0), counts(1, 2)];
    SYS_gettimeofday => [both(0, 16), both(1, 8)];
    SYS_getrlimit => [writes(1, 16)];
    SYS_setrlimit => [reads(1, 16)];
    SYS_prlimit64 => [reads(2, 16), both(3, 16)];
    SYS_getrusage => [writes(1, USAGE)];
    SYS_sysinfo => [writes(0, 112)];
    SYS_times => [both(0, 32)];
    SYS_time => [both(0, 8)];
    // Some of what it does answers a number, and writes nothing.
    SYS_syslog => [of(1, Way::Both, Bytes::Counted(2, 1))];
    SYS_getgroups => [of(1, Way::Out, Bytes::Counted(0, 4))];
    SYS_setgroups => [of(1, Way::In, Bytes::Times(0, 4))];
    SYS_getresuid | SYS_getresgid => [writes(0, 4), writes(1, 4), writes(2, 4)];
    SYS_capget => [both(0, 8), both(1, 24)];
    SYS_capset => [both(0, 8), reads(1, 24)];
    SYS_rt_sigpending => [writes_len(0, 1)];
    SYS_rt_sigtimedwait => [reads_len(0, 3), both(1, INFO), reads(2, 16)];
    SYS_rt_sigqueueinfo => [reads(2, INFO)];
    SYS_rt_tgsigqueueinfo => [reads(3, INFO)];
    SYS_utime => [text(0), reads(1, 16)];
    SYS_utimes => [text(0), reads(1, 32)];
    SYS_utimensat => [text(1), reads(2, 32)];
    SYS_futimesat => [text(1), reads(2, 32)];
    SYS_statfs => [text(0), writes(1, 120)];
    SYS_fstatfs => [writes(1, 120)];
    SYS_sched_setparam => [reads(1, 4)];
    SYS_sched_getparam => [writes(1, 4)];
    SYS_sched_setscheduler => [reads(2, 4)];
    SYS_sched_rr_get_interval => [writes(1, 16)];
    SYS_sched_setaffinity => [reads_len(2, 1)];
    SYS_sched_getaffinity => [answers(2, 1)];
    SYS_sched_setattr => [reads(1, 56)];
    SYS_sched_getattr => [writes_len(1, 2)];
    SYS_sethostname | SYS_setdomainname => [reads_len(0, 1)];
    SYS_mount => [text(0), text(1), text(2), of(4, Way::In, Bytes::Page)];
    SYS_setxattr | SYS_lsetxattr => [text(0), text(1), reads_len(2, 3)];
    SYS_fsetxattr => [text(1), reads_len(2, 3)];
    SYS_getxattr | SYS_lgetxattr => [text(0), text(1), answers(2, 3)];
    SYS_fgetxattr => [text(1), answers(2, 3)];
    SYS_listxattr | SYS_llistxattr => [text(0), answers(1, 2)];
    SYS_flistxattr => [answers(1, 2)];
    SYS_removexattr | SYS_lremovexattr => [text(0), text(1)];
    SYS_fremovexattr => [text(1)];
    SYS_timer_create => [reads(1, 64), writes(2, 4)];
    SYS_timer_settime => [reads(2, 32), both(3, 32)];
    SYS_timer_gettime => [writes(1, 32)];
    SYS_timerfd_settime => [reads(2, 32), both(3, 32)];
    SYS_timerfd_gettime => [writes(1, 32)];
    SYS_clock_settime => [reads(1, 16)];
    SYS_clock_gettime | SYS_clock_getres => [both(1, 16)];
    SYS_epoll_wait => [of(1, Way::Out, Bytes::Counted(2, 12))];
    SYS_epoll_pwait => [of(1, Way::Out, Bytes::Counted(2, 12))];
    SYS_epoll_pwait2 => [of(1, Way::Out, Bytes::Counted(2, 12)), reads(3, 16)];
    SYS_epoll_ctl => [reads(3, 12)];
    SYS_inotify_add_watch => [text(1)];
    SYS_openat | SYS_mkdirat | SYS_mknodat | SYS_fchownat | SYS_unlinkat | SYS_fchmodat | SYS_faccessat | SYS_faccessat2 => [text(1)];
    SYS_openat2 => [text(1), reads_len(2, 3)];
    SYS_newfstatat => [text(1), writes(2, STAT)];
    SYS_statx => [text(1), writes(4, 256)];
    SYS_renameat | SYS_renameat2 | SYS_linkat => [text(1), text(3)];
    SYS_symlinkat => [text(0), text(2)];
    SYS_readlinkat => [text(1), counts(2, 3)];
    SYS_signalfd | SYS_signalfd4 => [reads_len(1, 2)];
    SYS_getcpu => [both(0, 4), both(1, 4)];
    SYS_mq_open => [text(0), reads(3, 64)];
    SYS_mq_timedsend => [reads_len(1, 2), reads(4, 16)];
    SYS_mq_timedreceive => [answers(1, 2), both(3, 4), reads(4, 16)];
}

/// Kinds of ioctls of which many name the head of what they take: what comes behind it, it says itself. KVM, vhost, the device mapper; Bluetooth.
const LONGER_KINDS: [u8; 4] = [0xae, 0xaf, 0xfd, b'H'];
/// Others, one by one.
const LONGER: [u32; 23] = [
    // FIEMAP and EXT4_IOC_GET_ES_CACHE; FIDEDUPERANGE; FS_IOC_GETFSMAP; BTRFS_IOC_TREE_SEARCH_V2 and SPACE_INFO.
    0xc020_660b,
    0xc020_662a,
    0xc018_9436,
    0xc0c0_583b,
    0xc070_9411,
    0xc010_9414,
    // Of encrypted and verified files: FS_IOC_ADD_ENCRYPTION_KEY, GET_ENCRYPTION_POLICY_EX, SET_ENCRYPTION_POLICY, MEASURE_VERITY; EXT4_IOC_GETFSUUID and SETFSUUID.
    0xc050_6617,
    0xc009_6616,
    0x800c_6613,
    0xc004_6686,
    0x8008_662c,
    0x4008_662c,
    // PERF_EVENT_IOC_SET_FILTER, QUERY_BPF, MODIFY_ATTRIBUTES.
    0x4008_2406,
    0xc008_240a,
    0x4008_240b,
    // TUNSETTXFILTER; RNDADDENTROPY and RNDGETPOOL; BLKREPORTZONE; MMC_IOC_MULTI_CMD.
    0x4004_54d1,
    0x4008_5203,
    0x8008_5202,
    0xc010_1282,
    0xc008_b301,
    // SNDRV_CTL_IOCTL_TLV_READ, WRITE, COMMAND.
    0xc008_551a,
    0xc008_551b,
    0xc008_551c,
];
/// TUNSETIFF, TUNGETIFF, TUNSETQUEUE: they say an int, and take this.
const TUNNELS: [u32; 3] = [0x4004_54ca, 0x8004_54d2, 0x4004_54d9];
const IFREQ: usize = size_of::<libc::ifreq>();

/// Bytes of the piece that an ioctl of this number names, if it says so: those of the old kind do not, and some of them take none.
pub fn of_ioctl(number: c_long) -> Option<usize> {
    let number = number as u32;
    match (number as usize >> 16) & 0x3fff {
        _ if TUNNELS.contains(&number) => Some(IFREQ),
        _ if LONGER.contains(&number) || LONGER_KINDS.contains(&((number >> 8) as u8)) => None,
        0 => None,
        bytes => Some(bytes),
    }
}

/// Bytes of a set of so many files.
pub fn of_set(files: c_long) -> usize {
    ((files as i32).clamp(0, 1 << 20) as usize).div_ceil(64) * 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_calls_take() {
        let poll = of_call(libc::SYS_poll).unwrap();
        assert_eq!((poll[0].way, poll[0].bytes), (Way::Both, Bytes::Polled(1)));
        assert!(of_call(libc::SYS_getpid).is_none());
        assert_eq!(
            (of_set(1), of_set(64), of_set(65), of_set(0xffff_ffff)),
            (8, 8, 16, 0)
        );
        // TIOCGWINSZ is of the old kind, SIOCGIFNAME too; BLKGETSIZE64 says its length.
        assert_eq!(of_ioctl(0x5413), None);
        assert_eq!(of_ioctl(0x8008_1272), Some(8));
        assert_eq!(of_ioctl(0xc020_660b), None);
        // KVM_GET_SUPPORTED_CPUID says the head of a list; TUNSETIFF an int.
        assert_eq!(of_ioctl(0xc008_ae05), None);
        assert_eq!(of_ioctl(0x4004_54ca), Some(40));
    }
}
