//! Facts about the machine, as the operating system tells them.

use crate::error::{EvalError, file_error};
use crate::limits::MemoryLevel;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A cache of the first core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Cache {
    /// 1, 2, 3.
    pub level: u32,
    /// Bytes of one instance.
    pub bytes: u64,
    /// Cores that share an instance.
    pub shared_by: u32,
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Machine {
    /// CPU model.
    pub cpu: String,
    /// Instruction sets that matter here.
    pub flags: Vec<String>,
    /// Cores this process may use.
    pub cores: u32,
    /// Data and unified caches.
    pub caches: Vec<Cache>,
    /// Main memory.
    pub memory_bytes: u64,
    /// Of it, free for new work when asked.
    pub memory_free_bytes: u64,
    /// Kernel release.
    pub kernel: String,
    /// Frequency governor, if the kernel tells.
    pub governor: Option<String>,
    /// Whether it is a virtual machine.
    pub virtual_machine: bool,
    /// Runnable tasks over the last minute when asked, hundredths.
    pub load_hundredths: u64,
}

const FLAGS: &[&str] = &[
    "amx_bf16",
    "amx_int8",
    "avx",
    "avx2",
    "avx512_bf16",
    "avx512_fp16",
    "avx512_vnni",
    "avx512bw",
    "avx512f",
    "avx_vnni",
    "asimd",
    "asimddp",
    "bf16",
    "f16c",
    "fma",
    "i8mm",
    "sve",
];

impl Machine {
    /// Reads the facts.
    ///
    /// # Errors
    /// `/proc` is not there.
    pub fn read() -> Result<Self, EvalError> {
        let cpuinfo = read("/proc/cpuinfo")?;
        let meminfo = read("/proc/meminfo")?;
        let known = field(&cpuinfo, "flags").or_else(|| field(&cpuinfo, "Features")).unwrap_or_default();
        let has = |flag: &str| known.split_whitespace().any(|word| word == flag);
        Ok(Self {
            cpu: field(&cpuinfo, "model name").unwrap_or_else(|| std::env::consts::ARCH.into()),
            flags: FLAGS.iter().filter(|flag| has(flag)).map(ToString::to_string).collect(),
            cores: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            caches: caches(Path::new("/sys/devices/system/cpu/cpu0/cache")),
            memory_bytes: kib(&meminfo, "MemTotal"),
            memory_free_bytes: kib(&meminfo, "MemAvailable"),
            kernel: read("/proc/sys/kernel/osrelease")?.trim().into(),
            governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            virtual_machine: has("hypervisor"),
            load_hundredths: load(&read("/proc/loadavg")?),
        })
    }

    /// Bytes of one cache of a level.
    pub fn cache_bytes(&self, level: u32) -> Option<u64> {
        self.caches.iter().find(|cache| cache.level == level).map(|cache| cache.bytes)
    }

    /// Bytes of the last level of cache; 8 MiB if the kernel does not tell.
    pub fn last_level_bytes(&self) -> u64 {
        self.caches.iter().map(|cache| cache.bytes).max().unwrap_or(8 << 20)
    }

    /// The level that holds a working set split evenly over so many threads.
    pub fn level(&self, working_set_bytes: u64, threads: u32) -> MemoryLevel {
        let holds = |level: u32| {
            self.caches.iter().filter(|cache| cache.level == level).any(|cache| {
                let instances = u64::from(threads.max(1).div_ceil(cache.shared_by.max(1)));
                working_set_bytes <= cache.bytes.saturating_mul(instances)
            })
        };
        match () {
            () if holds(1) => MemoryLevel::L1,
            () if holds(2) => MemoryLevel::L2,
            () if holds(3) => MemoryLevel::L3,
            () => MemoryLevel::Dram,
        }
    }
}

fn read(path: &str) -> Result<String, EvalError> {
    std::fs::read_to_string(path).map_err(file_error(path))
}

fn line(path: impl AsRef<Path>) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_string())
}

fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_string())
    })
}

fn kib(meminfo: &str, name: &str) -> u64 {
    let value = field(meminfo, name).and_then(|v| v.split_whitespace().next()?.parse::<u64>().ok());
    value.unwrap_or(0).saturating_mul(1024)
}

fn load(loadavg: &str) -> u64 {
    let minute = loadavg.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    minute.map_or(0, |load| (load * 100.0) as u64)
}

fn caches(dir: &Path) -> Vec<Cache> {
    let mut caches: Vec<Cache> = (0..8)
        .filter_map(|index| {
            let at = |name: &str| line(dir.join(format!("index{index}/{name}")));
            if at("type")? == "Instruction" {
                return None;
            }
            Some(Cache {
                level: at("level")?.parse().ok()?,
                bytes: size(&at("size")?)?,
                shared_by: cpus(&at("shared_cpu_list")?)?,
            })
        })
        .collect();
    caches.sort_by_key(|cache| cache.level);
    caches
}

/// `32K`, `1M`.
fn size(text: &str) -> Option<u64> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let factor = match unit {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// How many CPUs `0-3,8` names.
fn cpus(list: &str) -> Option<u32> {
    list.split(',')
        .map(|part| match part.split_once('-') {
            Some((first, last)) => Some(last.parse::<u32>().ok()?.checked_sub(first.parse().ok()?)? + 1),
            None => part.parse::<u32>().ok().map(|_| 1),
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_lists() {
        assert_eq!((size("32K"), size("16M"), size("7"), size("3X")), (Some(32_768), Some(16 << 20), Some(7), None));
        assert_eq!((cpus("0-3,8"), cpus("5"), cpus("3-1"), cpus("x")), (Some(5), Some(1), None, None));
        assert_eq!(load("1.25 0.5 0.1 1/2 3"), 125);
        assert_eq!(kib("MemTotal:   24 kB\n", "MemTotal"), 24_576);
    }

    #[test]
    fn this_machine_has_cores_and_memory() {
        let machine = Machine::read().unwrap();
        assert!(machine.cores >= 1 && machine.memory_bytes > machine.memory_free_bytes / 2 && !machine.cpu.is_empty());
    }

    #[test]
    fn private_caches_count_once_a_thread_and_shared_ones_once() {
        let mut machine = Machine::read().unwrap();
        machine.caches = vec![
            Cache { level: 1, bytes: 32 << 10, shared_by: 1 },
            Cache { level: 2, bytes: 1 << 20, shared_by: 1 },
            Cache { level: 3, bytes: 32 << 20, shared_by: 8 },
        ];
        assert_eq!(machine.level(64 << 10, 1), MemoryLevel::L2);
        assert_eq!(machine.level(64 << 10, 2), MemoryLevel::L1);
        assert_eq!(machine.level(33 << 20, 2), MemoryLevel::Dram);
        assert_eq!(machine.level(32 << 20, 2), MemoryLevel::L3);
    }
}
