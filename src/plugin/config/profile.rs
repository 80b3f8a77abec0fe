//! Decides which profile of the configuration applies to a node. Pure.
//!
//! In: the plan that all nodes share, and the name and GPUs of this node. Out: the candidates: one profile, or the
//! common settings; several while it cannot be decided. The first profile that matches applies.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use serde::Deserialize;

use self::ProfileCandidate::{Common, Profile};
use super::entries::EntryConfig;
use super::values::one_or_several;
#[cfg(test)]
use super::values::schema;
use crate::domain::model::{AppliedProfile, HardwareSource, HardwareState, Inventory};
use crate::input::Pattern;
use crate::words::counted;

/// What to offer, on every node that has this configuration; validated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginPlan {
    /// The entries where no profile matches.
    pub common: Vec<EntryConfig>,
    pub profiles: Vec<PluginProfile>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginProfile {
    pub name: Arc<str>,
    pub conditions: ProfileMatch,
    /// All entries, including the common ones.
    pub entries: Vec<EntryConfig>,
}

/// Conditions, all of which must be true. Without any, every node matches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct ProfileMatch {
    /// Patterns with `*`, `?` and `[…]` for the model as `nvidia-smi -L` shows it. Every GPU that reports one must match.
    #[serde(deserialize_with = "one_or_several")]
    #[cfg_attr(test, schemars(schema_with = "schema::one_or_several::<String>"))]
    pub gpu_model: Vec<Pattern>,
    /// The number of the node's GPUs, including lost ones: a number, or `min` and `max`.
    pub gpu_count: Option<CountRange>,
    /// Patterns for the node's name.
    #[serde(deserialize_with = "one_or_several")]
    #[cfg_attr(test, schemars(schema_with = "schema::one_or_several::<String>"))]
    pub node_name: Vec<Pattern>,
}

/// Written `8`, `{min: 2}`, `{max: 4}` or `{min: 2, max: 4}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged, deny_unknown_fields, expecting = "write a number of GPUs, or {min: 2, max: 4}")]
pub enum CountRange {
    Exactly(usize),
    Between { min: Option<usize>, max: Option<usize> },
}

/// The name and the GPUs of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView<'n> {
    pub node_name: &'n str,
    /// The GPUs; `None`: the driver has not been read.
    pub gpus: Option<NodeGpus>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeGpus {
    pub count: usize,
    /// The models; empty where no GPU reports its model.
    pub models: BTreeSet<Arc<str>>,
}

/// What may apply of the plan, in its order; one candidate, once it is decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileCandidates(Vec<ProfileCandidate>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProfileCandidate {
    /// A profile, by its index in the plan.
    Profile(usize),
    Common,
}

impl<'n> NodeView<'n> {
    pub fn new(node_name: &'n str, hardware: &HardwareState) -> Self {
        let is_read = hardware.source == HardwareSource::None || hardware.inventory.generation > 0;
        Self { node_name, gpus: is_read.then(|| NodeGpus::from_inventory(&hardware.inventory)) }
    }
}

impl NodeGpus {
    /// Counts the GPUs; lost ones are included, those at another kernel driver are not.
    pub fn from_inventory(inventory: &Inventory) -> Self {
        let gpus = || inventory.gpus.values().filter(|gpu| inventory.is_expected(&gpu.uuid));
        Self { count: gpus().count(), models: gpus().filter_map(|gpu| gpu.model.clone()).collect() }
    }
}

impl fmt::Display for NodeGpus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let models: Vec<&str> = self.models.iter().map(|model| &**model).collect();
        formatter.write_str(&counted(self.count, "GPU"))?;
        if models.is_empty() { Ok(()) } else { write!(formatter, " ({})", models.join(", ")) }
    }
}

impl From<Vec<EntryConfig>> for PluginPlan {
    fn from(common: Vec<EntryConfig>) -> Self {
        Self { common, profiles: vec![] }
    }
}

impl PluginPlan {
    pub fn candidates(&self, node: &NodeView<'_>) -> ProfileCandidates {
        let mut candidates = vec![];
        for (index, profile) in self.profiles.iter().enumerate() {
            let matches = profile.conditions.matches(node);
            if matches != Some(false) {
                candidates.push(Profile(index));
            }
            if matches == Some(true) {
                return ProfileCandidates(candidates);
            }
        }
        candidates.push(Common);
        ProfileCandidates(candidates)
    }

    /// The entries that all candidates have.
    pub fn entries(&self, ProfileCandidates(candidates): &ProfileCandidates) -> Vec<EntryConfig> {
        let entries_of = |candidate: &ProfileCandidate| match candidate {
            Profile(index) => &self.profiles[*index].entries,
            Common => &self.common,
        };
        let is_in_all = |entry: &&EntryConfig| candidates.iter().all(|one| entries_of(one).contains(entry));
        candidates.first().map(entries_of).into_iter().flatten().filter(is_in_all).cloned().collect()
    }

    /// The entries of the common settings and of every profile.
    pub fn all_entries(&self) -> impl Iterator<Item = &EntryConfig> {
        self.common.iter().chain(self.profiles.iter().flat_map(|profile| &profile.entries))
    }

    /// What applies, to publish; `None` without profiles.
    pub fn applied(&self, ProfileCandidates(candidates): &ProfileCandidates) -> Option<AppliedProfile> {
        let (decision, name) = match candidates.as_slice() {
            [Common] => ("common", None),
            [Profile(index)] => ("profile", Some(Arc::clone(&self.profiles[*index].name))),
            _ => ("undecided", None),
        };
        (!self.profiles.is_empty()).then_some(AppliedProfile { decision, name })
    }
}

impl ProfileMatch {
    /// Whether the node matches; `None`: not known yet.
    fn matches(&self, node: &NodeView<'_>) -> Option<bool> {
        let fits_one = |patterns: &[Pattern], text: &str| patterns.iter().any(|pattern| pattern.matches(text));
        if !self.node_name.is_empty() && !fits_one(&self.node_name, node.node_name) {
            return Some(false);
        }
        if self.gpu_model.is_empty() && self.gpu_count.is_none() {
            return Some(true);
        }
        let gpus = node.gpus.as_ref()?;
        if self.gpu_count.is_some_and(|range| !range.bounds().contains(&gpus.count)) {
            return Some(false);
        }
        if self.gpu_model.is_empty() {
            return Some(true);
        }
        match gpus.models.is_empty() {
            true if gpus.count > 0 => None,
            true => Some(false),
            false => Some(gpus.models.iter().all(|model| fits_one(&self.gpu_model, model))),
        }
    }
}

impl CountRange {
    #[must_use]
    pub fn bounds(self) -> RangeInclusive<usize> {
        match self {
            Self::Exactly(count) => count..=count,
            Self::Between { min, max } => min.unwrap_or(0)..=max.unwrap_or(usize::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::test_data::nvidia;

    const A100: &str = "NVIDIA A100-SXM4-80GB";
    const T4: &str = "Tesla T4";

    fn conditions(text: &str) -> ProfileMatch {
        serde_saphyr::from_str(&format!("{{{text}}}")).expect(text)
    }

    fn plan(profiles: &[&str]) -> PluginPlan {
        let profile = |(index, text): (usize, &&str)| PluginProfile {
            name: format!("p{index}").into(),
            conditions: conditions(text),
            entries: vec![nvidia(&format!("name: example.com/p{index}"))],
        };
        PluginPlan { common: vec![nvidia("")], profiles: profiles.iter().enumerate().map(profile).collect() }
    }

    fn gpus(models: &[&str]) -> Option<NodeGpus> {
        Some(NodeGpus { count: models.len(), models: models.iter().map(|model| (*model).into()).collect() })
    }

    #[test]
    fn the_first_profile_that_matches_applies() {
        let unnamed = Some(NodeGpus { count: 2, ..NodeGpus::default() });
        let (a100, t4, mixed) = (gpus(&[A100; 8]), gpus(&[T4]), gpus(&[A100, T4]));
        let none = gpus(&[]);
        for (profiles, gpus, expected) in [
            (&[][..], &None, vec![Common]),
            (&["gpuModel: '*A100*'"], &a100, vec![Profile(0)]),
            (&["gpuModel: '*A100*'"], &t4, vec![Common]),
            (&["gpuModel: '*a100*'"], &a100, vec![Common]),
            (&["gpuModel: A100"], &a100, vec![Common]),
            (&["gpuModel: Tesla T4", "gpuModel: '*A100*'"], &a100, vec![Profile(1)]),
            (&["gpuModel: '*A100*'", "gpuModel: NVIDIA*"], &a100, vec![Profile(0)]),
            // Every GPU must match.
            (&["gpuModel: '*A100*'"], &mixed, vec![Common]),
            (&["gpuModel: ['*A100*', '*T4']"], &mixed, vec![Profile(0)]),
            (&["gpuModel: '*'"], &none, vec![Common]),
            (&["gpuCount: 0"], &none, vec![Profile(0)]),
            (&["gpuCount: 8"], &a100, vec![Profile(0)]),
            (&["gpuCount: {min: 9}", "gpuCount: {max: 8}"], &a100, vec![Profile(1)]),
            (&["gpuCount: {min: 2, max: 8}"], &t4, vec![Common]),
            (&["gpuModel: '*A100*', gpuCount: 4"], &a100, vec![Common]),
            (&["nodeName: other"], &a100, vec![Common]),
            (&["nodeName: [other, 'gpu-*']"], &a100, vec![Profile(0)]),
            (&["nodeName: 'gpu-[0-3]', gpuModel: '*T4*'", ""], &a100, vec![Profile(1)]),
            // The driver has not been read.
            (&["nodeName: 'gpu-?'"], &None, vec![Profile(0)]),
            (&["nodeName: other, gpuModel: '*'"], &None, vec![Common]),
            (&["gpuModel: '*'"], &None, vec![Profile(0), Common]),
            (&["gpuModel: '*T4*'", "nodeName: gpu-1", "gpuCount: 1"], &None, vec![Profile(0), Profile(1)]),
            // No GPU reports its model.
            (&["gpuModel: '*'"], &unnamed, vec![Profile(0), Common]),
            (&["gpuModel: '*', gpuCount: 3"], &unnamed, vec![Common]),
        ] {
            let node = NodeView { node_name: "gpu-1", gpus: gpus.clone() };
            assert_eq!(plan(profiles).candidates(&node).0, expected, "{profiles:?} {gpus:?}");
        }
    }

    #[test]
    fn while_it_is_undecided_only_what_no_profile_changes_is_offered() {
        let mut plan = plan(&["gpuModel: '*A100*'", "gpuModel: '*T4*'"]);
        let same = nvidia("name: example.com/same");
        plan.common.push(same.clone());
        plan.profiles.iter_mut().for_each(|profile| profile.entries.insert(0, same.clone()));
        let view = NodeView { node_name: "n", gpus: None };
        let undecided = plan.candidates(&view);
        assert_eq!(plan.entries(&undecided), [same]);
        assert_eq!(plan.applied(&undecided), Some(AppliedProfile { decision: "undecided", name: None }));
        let decided = plan.candidates(&NodeView { gpus: gpus(&[T4]), ..view });
        assert_eq!(plan.entries(&decided)[1].name().as_str(), "example.com/p1");
        assert_eq!(plan.applied(&decided).and_then(|applied| applied.name).as_deref(), Some("p1"));
        assert_eq!(PluginPlan::from(vec![]).applied(&ProfileCandidates(vec![Common])), None);
    }

    #[test]
    fn what_is_wrong_with_a_match_is_named() {
        for (text, parts) in [
            ("gpu: x", ["gpu", "gpuModel"]),
            ("gpuCount: many", ["number of GPUs", "line"]),
            ("gpuCount: -1", ["number of GPUs", "line"]),
            ("gpuCount: {least: 2}", ["number of GPUs", "min"]),
        ] {
            let error = serde_saphyr::from_str::<ProfileMatch>(&format!("{{{text}}}")).expect_err(text).to_string();
            for part in parts {
                assert!(error.contains(part), "{part:?} in {error}");
            }
        }
    }
}
