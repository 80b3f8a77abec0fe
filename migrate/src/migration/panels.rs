//! Panels: their units, and the labels that they name beside their queries.

use std::collections::{BTreeMap, BTreeSet};

use super::draft::{Draft, Drafting};
use super::{Change, Left, Work};
use crate::queries::{Unit, dashboards};
use crate::units;

impl Work<'_> {
    /// Panel → its queries, by number.
    fn queries_of_panels(&self) -> BTreeMap<usize, Vec<usize>> {
        let mut panels: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (number, query) in self.found.queries.iter().enumerate() {
            if let Unit::Panel(panel) = query.unit {
                panels.entry(panel).or_default().push(number);
            }
        }
        panels
    }

    /// The values of a panel's queries stay where not all of them and its units can be converted.
    pub fn keep_values_of_panels(&mut self) {
        // Panels whose results another panel shows, in its own units.
        let shown: BTreeSet<(usize, &str)> = self
            .found
            .panels
            .iter()
            .flat_map(|panel| panel.node.items_of("targets").iter().map(|target| (panel.document, target)))
            .filter_map(|(document, target)| Some((document, target.text_of("panelId")?)))
            .collect();
        for (panel, queries) in self.queries_of_panels() {
            let factor = |query: &usize| match &self.drafts[*query] {
                Draft::Rewritten(parts) => parts.rewritten.factor,
                Draft::Same | Draft::Left(_) => 1.0,
            };
            let factors: Vec<f64> = queries.iter().map(factor).collect();
            if factors.iter().all(|factor| *factor == 1.0) {
                continue;
            }
            let panel = &self.found.panels[panel];
            let shown = panel.node.text_of("id").is_some_and(|id| shown.contains(&(panel.document, id)));
            let same = !shown && factors.iter().all(|factor| *factor == factors[0]);
            let converted = same.then(|| units::of_panel(panel.document, panel.node, factors[0])).flatten();
            match converted {
                Some(converted) => {
                    if let Draft::Rewritten(parts) = &mut self.drafts[queries[0]] {
                        parts.converted = converted;
                    }
                }
                None => {
                    let kept = Drafting { base_units: false, ..self.drafting() };
                    for query in queries {
                        self.drafts[query] = kept.draft(&self.found.queries[query], &BTreeMap::new());
                    }
                }
            }
        }
    }

    /// Renames labels in transformations, overrides and sort orders of panels all of whose queries rename them.
    pub fn check_panels(&mut self) {
        for (panel, queries) in self.queries_of_panels() {
            let panel = &self.found.panels[panel];
            let mut renamed: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
            let mut kept = false;
            for query in queries {
                match &self.drafts[query] {
                    Draft::Rewritten(parts) => {
                        for (before, after) in &parts.rewritten.labels {
                            renamed.entry(before).or_default().insert(after);
                        }
                    }
                    Draft::Same | Draft::Left(_) => kept = true,
                }
            }
            if renamed.is_empty() {
                continue;
            }
            let (mut changes, mut left, mut edits) = (vec![], vec![], vec![]);
            for reader in dashboards::readers(panel.node) {
                let place = (panel.document, reader.node.span.start);
                let mut named = reader.labels();
                named.retain(|(_, label, _)| renamed.contains_key(label));
                let line = |offset| self.file.line(place, offset);
                let after = |label: &str| renamed[label].iter().copied().collect::<Vec<_>>();
                let unclear = named
                    .iter()
                    .find(|(_, label, exact)| kept || reader.node.shared || !exact || renamed[label].len() > 1);
                if let Some((range, label, _)) = unclear {
                    let after = after(label).join("` or `");
                    left.push(Left {
                        line: line(range.start),
                        name: (*label).to_owned(),
                        reason: format!("the panel names the label, which becomes `{after}` in rewritten queries"),
                        suggestion: None,
                    });
                } else if !named.is_empty() {
                    let each = named.iter().map(|(range, label, _)| (range.clone(), after(label).concat()));
                    let each: Vec<_> = each.collect();
                    changes.extend(each.iter().zip(&named).map(|((range, after), (_, label, _))| Change {
                        line: line(range.start),
                        before: (*label).to_owned(),
                        after: after.clone(),
                        reason: "the label of the rewritten queries".into(),
                    }));
                    edits.push((place, each));
                }
            }
            self.edits.extend(edits);
            self.changes.extend(changes);
            self.left.extend(left);
        }
    }
}
