//! KEDA's ScaledObject and ScaledJob: triggers with a query of Prometheus.

use super::{Found, Query, Unit};
use crate::files::tree::Node;

pub fn find<'f>(document: usize, spec: &'f Node, found: &mut Found<'f>) {
    for trigger in spec.items_of("triggers") {
        if trigger.text_of("type") != Some("prometheus") {
            continue;
        }
        let Some(metadata) = trigger.get("metadata") else { continue };
        let Some(mut query) = metadata.get("query").and_then(|node| Query::new(document, node)) else { continue };
        let thresholds = ["threshold", "activationThreshold"].into_iter().filter_map(|key| metadata.get(key));
        let thresholds = thresholds.filter_map(|node| Some(((document, node.span.start), node.text()?)));
        // A formula over the values of several triggers has a target of its own.
        if spec.at(&["advanced", "scalingModifiers"]).is_none() {
            query.unit = Unit::Thresholds(thresholds.collect());
        }
        found.queries.push(query);
    }
}
