//! Where the time of a decode step goes: each op beside the least time it could take, and what lies between.
//!
//! The times of ops are the engine's own and explain, they never score: the whole is the evaluator's clock, and what the ops
//! do not account for is shown as such. An op a plugin computes together with others appears under the plugin's name and
//! has no floor of its own.

use crate::ceiling::{CeilingModel, passes_between, split_passes};
use crit_core::model::program::Axes;
use crit_core::protocol::{EngineStats, PassCount};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An op's part in a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct OpPart {
    /// The op, or the plugin that computes it.
    pub op: String,
    /// Microseconds a step, as the engine tells.
    pub time_us: f64,
    /// Microseconds it takes at least; absent for what is no op of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor_us: Option<f64>,
    /// Bytes it must move a step.
    pub bytes: u64,
    /// Operations a step.
    pub flops: u64,
}

/// A decode step taken apart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Profile {
    /// Steps looked at.
    pub steps: u64,
    /// Microseconds a step by the evaluator's clock.
    pub step_us: f64,
    /// Of those, in the executor, as the engine tells.
    pub executor_us: f64,
    /// The least time of the whole step.
    pub floor_us: f64,
    /// The ops, the longest first.
    pub ops: Vec<OpPart>,
}

/// A stretch of the waterfall from the step's time down to its floor.
#[derive(Clone, Debug, PartialEq)]
pub struct Stretch {
    /// What it is.
    pub name: String,
    /// Microseconds.
    pub us: f64,
    /// Whether it is the floor itself.
    pub is_floor: bool,
}

impl Profile {
    /// The profile of the decode passes between two looks at the counters; `wall_s` is the time they took. `None` if the
    /// engine tells no op times, or no decode pass ran.
    pub fn of(before: &EngineStats, after: &EngineStats, wall_s: f64, model: &CeilingModel<'_>) -> Option<Self> {
        let (_, passes) = split_passes(&passes_between(&before.passes, &after.passes));
        let steps: u64 = passes.iter().map(|group| group.count).sum();
        let earlier: BTreeMap<&str, u64> = before.op_times.iter().map(|op| (op.op.as_str(), op.time_us)).collect();
        let times: Vec<(String, u64)> = after
            .op_times
            .iter()
            .map(|op| (op.op.clone(), op.time_us.saturating_sub(earlier.get(op.op.as_str()).copied().unwrap_or(0))))
            .filter(|(_, time_us)| *time_us > 0)
            .collect();
        if steps == 0 || times.is_empty() {
            return None;
        }
        let per_step = 1.0 / steps as f64;
        let floors = floors(&passes, model);
        let mut ops: Vec<OpPart> = times
            .into_iter()
            .map(|(op, time_us)| {
                let floor = floors.get(op.as_str());
                let (bytes, flops) = floor.map_or((0, 0), |floor| (floor.bytes / steps, floor.flops / steps));
                let floor_us = floor.map(|floor| floor.seconds * 1e6 * per_step);
                OpPart { op, time_us: time_us as f64 * per_step, floor_us, bytes, flops }
            })
            .collect();
        ops.sort_by(|a, b| b.time_us.total_cmp(&a.time_us));
        let executor_us = passes.iter().map(|group| group.time_us).sum::<u64>() as f64 * per_step;
        let floor_us = model.phase(&passes).floor_s * 1e6 * per_step;
        Some(Self { steps, step_us: wall_s * 1e6 * per_step, executor_us, floor_us, ops })
    }

    /// From the whole step down to its floor: what is outside the executor, what the executor spends between ops, what
    /// each op takes beyond its own floor, and the floor.
    pub fn waterfall(&self) -> Vec<Stretch> {
        let in_ops: f64 = self.ops.iter().map(|op| op.time_us).sum();
        let stretch = |name: &str, us: f64| Stretch { name: name.into(), us: us.max(0.0), is_floor: false };
        let mut found = vec![
            stretch("sampling, scheduling, protocol", self.step_us - self.executor_us),
            stretch("between ops", self.executor_us - in_ops),
        ];
        found.extend(self.ops.iter().map(|op| stretch(&op.op, op.time_us - op.floor_us.unwrap_or(0.0))));
        found.retain(|stretch| stretch.us > 0.005 * self.step_us);
        // Ops overlap in the floor of a pass (memory and arithmetic at once), so theirs do not sum to it: what is left is it.
        let above: f64 = found.iter().map(|stretch| stretch.us).sum();
        found.push(Stretch { name: "floor".into(), us: (self.step_us - above).max(0.0), is_floor: true });
        found
    }
}

/// The counters as they would stand had what happened between two looks happened once more: taken off a longer run, it leaves
/// what the longer run did beyond.
pub fn once_more(before: &EngineStats, after: &EngineStats) -> EngineStats {
    let mut ahead = after.clone();
    for group in passes_between(&before.passes, &after.passes) {
        if let Some(known) = ahead.passes.iter_mut().find(|known| known.seqs == group.seqs) {
            known.count += group.count;
            known.time_us += group.time_us;
        }
    }
    for op in &mut ahead.op_times {
        let earlier = before.op_times.iter().find(|known| known.op == op.op).map_or(0, |known| known.time_us);
        op.time_us += op.time_us.saturating_sub(earlier);
    }
    ahead
}

/// Bytes, operations and least time of one op over some passes.
#[derive(Clone, Copy, Debug, Default)]
struct Floor {
    bytes: u64,
    flops: u64,
    seconds: f64,
}

fn floors(passes: &[PassCount], model: &CeilingModel<'_>) -> BTreeMap<&'static str, Floor> {
    let mut found: BTreeMap<&'static str, Floor> = BTreeMap::new();
    for group in passes {
        for (op, cost, seconds) in model.by_op(&Axes { seqs: group.seqs.clone() }) {
            let floor = found.entry(op).or_default();
            floor.bytes += cost.bytes() * group.count;
            floor.flops += (cost.linear_flops + cost.other_flops) * group.count;
            floor.seconds += seconds * group.count as f64;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ceiling::tests::{engine, toy};
    use crate::limits::tests::round_limits;
    use crit_core::model::program::{Precision, SeqAxes};
    use crit_core::runtime::OpTime;

    fn stats(prompts: u64, steps: u64, linear_us: u64) -> EngineStats {
        let pass = |tokens, rows, past, count| PassCount {
            seqs: vec![SeqAxes { tokens, past, rows }],
            count,
            time_us: count * 90,
        };
        let op = |op: &str, time_us| OpTime { op: op.into(), time_us };
        EngineStats {
            passes: vec![pass(32, 1, 0, prompts), pass(1, 1, 0, steps)],
            op_times: vec![op("linear", linear_us), op("fused by a plugin", linear_us / 2)],
            ..EngineStats::default()
        }
    }

    #[test]
    fn a_step_is_taken_apart_and_the_parts_sum_to_it() {
        let (program, info, limits) = (toy(), engine((Precision::F32, Precision::F32)), round_limits());
        let model = CeilingModel::new(&program, &info, &limits).unwrap();
        // A prompt alone, then a prompt and ten steps, of 100 µs by the evaluator's clock.
        let (start, read, whole) = (stats(1, 0, 50), stats(2, 0, 60), stats(3, 10, 470));
        let profile = Profile::of(&once_more(&start, &read), &whole, 1e-3, &model).unwrap();
        assert_eq!((profile.steps, profile.step_us, profile.executor_us), (10, 100.0, 90.0));
        assert_eq!((profile.ops[0].op.as_str(), profile.ops[0].time_us), ("linear", 40.0));
        assert!(profile.ops[0].floor_us.unwrap() > 0.0 && profile.ops[1].floor_us.is_none());
        let waterfall = profile.waterfall();
        assert!((waterfall.iter().map(|stretch| stretch.us).sum::<f64>() - 100.0).abs() < 1.0, "{waterfall:?}");
        assert!(waterfall.last().unwrap().is_floor && waterfall[0].us == 10.0);
    }

    #[test]
    fn the_floors_of_ops_sum_to_no_less_than_the_floor_of_the_pass() {
        let (program, info, limits) = (toy(), engine((Precision::F32, Precision::F32)), round_limits());
        let model = CeilingModel::new(&program, &info, &limits).unwrap();
        let axes = Axes { seqs: vec![SeqAxes { tokens: 1, past: 64, rows: 1 }] };
        let ops: f64 = model.by_op(&axes).iter().map(|(_, _, seconds)| seconds).sum();
        assert!(ops >= model.pass(&axes).floor_s() * 0.999_999);
    }

    #[test]
    fn without_op_times_or_steps_there_is_no_profile() {
        let (program, info, limits) = (toy(), engine((Precision::F32, Precision::F32)), round_limits());
        let model = CeilingModel::new(&program, &info, &limits).unwrap();
        let silent = EngineStats { op_times: Vec::new(), ..stats(1, 5, 0) };
        assert_eq!(Profile::of(&EngineStats::default(), &silent, 1.0, &model), None);
        assert_eq!(Profile::of(&EngineStats::default(), &stats(2, 0, 9), 1.0, &model), None);
    }
}
