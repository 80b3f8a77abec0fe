//! The metrics and events of one device, or of one container on a device, as a separate page. The live page's script
//! shows them inside the row.

use std::collections::BTreeMap;

use maud::{Markup, html};
use prometheus_client::metrics::MetricType;

use super::text::{device_name, gibibytes, kilowatt_hours, percent, span, time, watts};
use super::{GrafanaUrl, document, events};
use crate::domain::history::{HistoryEvent, NodeHistory};
use crate::domain::model::{ClaimGpu, GpuUuid, MigDevice, Snapshot, UnixSeconds};
use crate::serve::metrics::{self, Family, SampleValue};

/// What a row of the page is about.
struct DetailSubject<'a> {
    /// Namespace, pod and name.
    container: Option<[&'a str; 3]>,
    gpu: &'a GpuUuid,
    mig: Option<&'a MigDevice>,
    /// The names that DRA drivers have for it.
    claimed: Vec<&'a str>,
}

impl<'a> DetailSubject<'a> {
    /// `key`: a UUID, or `namespace/pod/container UUID`. `None` for a device that is not in the inventory.
    fn find(snapshot: &'a Snapshot, key: &'a str) -> Option<Self> {
        let (container, uuid) = match key.rsplit_once(' ') {
            None => (None, key),
            Some((container, uuid)) => (Some(container.split('/').collect::<Vec<_>>().try_into().ok()?), uuid),
        };
        snapshot.hardware.inventory.gpus.values().find_map(|gpu| {
            let mig = gpu.mig_devices.iter().find(|mig| mig.uuid.as_str() == uuid);
            let mig_uuid = mig.map(|mig| &mig.uuid);
            let is_it = |joined: &&ClaimGpu| joined.gpu == gpu.uuid && joined.mig.as_ref() == mig_uuid;
            let claims = snapshot.claim_gpus.iter().filter(is_it);
            let claimed = || claims.map(|joined| joined.claim.device.as_str()).collect();
            (gpu.uuid.as_str() == uuid || mig.is_some()).then(|| Self {
                container,
                gpu: &gpu.uuid,
                mig,
                claimed: claimed(),
            })
        })
    }

    fn name(&self, snapshot: &Snapshot) -> String {
        let device = device_name(snapshot, self.gpu, self.mig.map(|mig| &mig.uuid));
        match self.container {
            Some(parts) => format!("{} on {device}", parts.join("/")),
            None => device,
        }
    }

    /// Whether a series with these labels is of this subject. A device's metrics have no pod; a MIG device's have its
    /// UUID or its GPU instance. A container's metrics with a `device` label name the device as the kubelet does: by
    /// its UUID, by that with a slot, or by the name in the claim.
    fn has(&self, labels: &BTreeMap<&str, &str>) -> bool {
        let label = |name: &str| labels.get(name).copied();
        let on_gpu = label("gpu_uuid") == Some(self.gpu.as_str());
        let on_device = match self.mig {
            None => on_gpu && label("mig_uuid").is_none() && label("gpu_instance").is_none(),
            Some(mig) => match label("mig_uuid") {
                Some(uuid) => uuid == mig.uuid.as_str(),
                None => on_gpu && label("gpu_instance") == Some(&mig.gpu_instance.to_string()),
            },
        };
        let Some([namespace, pod, container]) = self.container else { return on_device && label("pod").is_none() };
        let uuid = self.mig.map_or(self.gpu.as_str(), |mig| mig.uuid.as_str());
        let is_it = match label("device") {
            Some(device) => device.starts_with(uuid) || self.claimed.contains(&device),
            None => on_device || label("gpu_uuid").is_none(),
        };
        let in_pod = label("namespace") == Some(namespace) && label("pod") == Some(pod);
        in_pod && label("container").is_none_or(|name| name == container) && is_it
    }

    fn concerns(&self, event: &HistoryEvent) -> bool {
        let mig = self.mig.map(|mig| &mig.uuid);
        match self.container {
            Some(parts) => event.containers.iter().any(|container| container.to_string() == parts.join("/")),
            None => event.devices.iter().any(|device| {
                device.gpu == *self.gpu && (mig.is_none() || device.mig.is_none() || device.mig.as_ref() == mig)
            }),
        }
    }
}

/// The page of one row; `None` where the node has no such device.
pub(in crate::serve::web) fn page(
    snapshot: &Snapshot,
    history: &NodeHistory,
    grafana: Option<&GrafanaUrl>,
    key: &str,
) -> Option<String> {
    let subject = DetailSubject::find(snapshot, key)?;
    let name = subject.name(snapshot);
    let found: Vec<&HistoryEvent> = history.events().filter(|event| subject.concerns(event)).collect();
    let main = html! {
        main {
            h1 { (name) }
            p.muted { (key) }
            div #detail {
                @if let Some(grafana) = grafana {
                    @let link = subject.container.map_or_else(
                        || grafana.device(subject.gpu.as_str()), |[namespace, pod, _]| grafana.pod(namespace, pod));
                    p { a href=(link) target="_blank" rel="noreferrer" { "Dashboard in Grafana" } }
                }
                h2 { "Events" }
                @if found.is_empty() { p.muted { "None among the node's last events." } }
                // It scrolls, so it must be reachable by keyboard.
                @else { ol.events tabindex="0" aria-label={ "Events of " (name) } { @for event in found { (events::item(snapshot, event)) } } }
                @for (section, families) in metrics::sections(snapshot) {
                    @let values: Vec<Markup> = families.filter_map(|family| values(&subject, &family)).collect();
                    @if !values.is_empty() { h2 { (section) } dl.metrics { @for value in values { (value) } } }
                }
            }
            p { a href="/" { "Back to the node" } }
        }
    };
    Some(document(&name, main).into_string())
}

/// A metric's help, its values in the units of the page, and its name.
fn values(subject: &DetailSubject<'_>, family: &Family) -> Option<Markup> {
    const OF_SUBJECT: [&str; 8] =
        ["gpu_uuid", "gpu", "mig_uuid", "gpu_instance", "compute_instance", "namespace", "pod", "container"];
    let name = family.descriptor.name;
    let samples: Vec<(String, Markup)> = family
        .samples
        .iter()
        .filter_map(|sample| {
            let labels: BTreeMap<&str, &str> = sample.labels.iter().collect();
            if !subject.has(&labels) {
                return None;
            }
            let others = sample.labels.iter().filter(|(name, _)| !OF_SUBJECT.contains(name));
            let others: Vec<String> =
                others.map(|(name, value)| format!("{} {value}", name.replace('_', " "))).collect();
            Some((others.join(", "), shown(name, family.descriptor.unit(), &sample.value)?))
        })
        .collect();
    (!samples.is_empty()).then(|| {
        let query = promql(subject, family);
        html! {
            div data-key=(name) {
                dt {
                    (family.descriptor.help) " " code { (name) } " "
                    button.copy type="button" data-keep data-copy=(query) aria-label={ "Copy the PromQL of " (name) } { "copy" }
                }
                // The value of an info metric is always 1.
                @for (labels, value) in samples { dd { (labels) " " @if !name.ends_with("_info") { b { (value) } } } }
            }
        }
    })
}

/// The PromQL query of these values, by the labels that all of them have; a rate for a counter.
fn promql(subject: &DetailSubject<'_>, family: &Family) -> String {
    const BY: [&str; 6] = ["gpu_uuid", "mig_uuid", "gpu_instance", "namespace", "pod", "container"];
    let labels = family.samples.iter().map(|sample| sample.labels.iter().collect::<BTreeMap<_, _>>());
    let mut labels = labels.filter(|labels| subject.has(labels));
    let mut shared = labels.next().unwrap_or_default();
    for others in labels {
        shared.retain(|name, value| others.get(name) == Some(value));
    }
    let escaped = |value: &str| value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
    let by = BY.into_iter().filter_map(|name| Some(format!("{name}=\"{}\"", escaped(shared.get(name)?))));
    let selector = format!("{}{{{}}}", family.descriptor.name, by.collect::<Vec<_>>().join(","));
    match family.descriptor.kind {
        MetricType::Counter => format!("rate({selector}[5m])"),
        _ => selector,
    }
}

/// The value with its unit; `None` for a histogram.
fn shown(name: &str, unit: &str, value: &SampleValue) -> Option<Markup> {
    let number = value.as_f64()?;
    let text = match unit {
        "seconds" if name.contains("timestamp") => return Some(time(UnixSeconds(number))),
        "seconds" if number == 0.0 || number >= 1.0 => span(number as u64),
        "seconds" => format!("{number:.3} s"),
        "bytes" => gibibytes(number as u64),
        _ if name.contains("bytes_per_second") => format!("{}/s", gibibytes(number as u64)),
        "celsius" => format!("{number:.0} °C"),
        "hertz" => format!("{:.0} MHz", number / 1e6),
        "joules" => kilowatt_hours(number),
        "ratio" if number == 0.0 || number >= 1e-3 => percent(number),
        "ratio" => format!("{number:e}"),
        "watts" => watts(number),
        _ => ((number * 1e3).round() / 1e3).to_string(),
    };
    Some(html! { (text) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::metrics::tests::fixture;

    fn detail(key: &str) -> Option<String> {
        let snapshot = fixture::snapshot();
        let mut history = NodeHistory::default();
        history.add(&snapshot);
        page(&snapshot, &history, Some(&"https://grafana.example".parse().unwrap()), key)
    }

    #[test]
    fn a_device_has_its_metrics_and_no_others() {
        let page = detail(fixture::WHOLE).unwrap();
        assert!(page.contains("podmeter_device_power_watts") && page.contains("podmeter_device_info"), "{page}");
        assert!(!page.contains("podmeter_container_") && !page.contains("podmeter_mig_memory"), "{page}");
        let slice = detail(fixture::SLICE).unwrap();
        assert!(slice.contains("podmeter_mig_device_info") && slice.contains("podmeter_mig_memory_bytes"), "{slice}");
        assert!(!slice.contains("podmeter_device_power_watts"), "{slice}");
    }

    #[test]
    fn values_have_units_and_no_digits_of_rounding() {
        let page = detail(fixture::WHOLE).unwrap();
        assert!(page.contains("<b>40.0 GiB</b>") && page.contains("<b>61 °C</b>"), "{page}");
        let text = |name, unit, value| shown(name, unit, &SampleValue::Float(value)).unwrap().into_string();
        assert_eq!(text("podmeter_x", "", 0.999_999_999_999_993_6), "1");
        assert_eq!(text("podmeter_x_ratio", "ratio", 1.5e-14), "1.5e-14");
    }

    #[test]
    fn a_container_has_the_metrics_of_its_device() {
        let key = format!("research/training-0/main {}", fixture::WHOLE);
        let page = detail(&key).unwrap();
        assert!(page.contains("research/training-0/main on GPU"), "{page}");
        assert!(page.contains("podmeter_container_busy_seconds_total") && !page.contains("podmeter_device_"), "{page}");
        let busy = page.split("podmeter_container_busy_seconds_total").nth(1).unwrap().split("</div>").next().unwrap();
        assert_eq!(busy.matches("<dd>").count(), 1, "{busy}");
    }

    #[test]
    fn a_container_has_the_metrics_of_its_claim() {
        let mig = fixture::snapshot().claim_gpus[0].mig.clone().unwrap();
        let page = detail(&format!("research/claiming/main {mig}")).unwrap();
        assert!(page.contains("podmeter_container_claim_info") && page.contains("source dra"), "{page}");
    }

    #[test]
    fn a_row_has_its_queries_and_its_dashboard() {
        let page = detail(fixture::WHOLE).unwrap();
        let query = format!("data-copy=\"podmeter_device_power_watts{{gpu_uuid=&quot;{}&quot;}}\"", fixture::WHOLE);
        assert!(page.contains(&query), "{page}");
        let link = fixture::WHOLE.replace('-', "%2D");
        assert!(page.contains(&format!("https://grafana.example/d/podmeter-device?var-gpu={link}\"")), "{page}");
        let page = detail(&format!("research/training-0/main {}", fixture::WHOLE)).unwrap();
        let query = "data-copy=\"rate(podmeter_container_busy_seconds_total{gpu_uuid=&quot;";
        let query = page.split(query).nth(1).unwrap().split('>').next().unwrap();
        assert!(
            query.contains(
                "namespace=&quot;research&quot;,pod=&quot;training-0&quot;,container=&quot;main&quot;}[5m])\""
            ),
            "{query}"
        );
        assert!(page.contains("/d/podmeter-namespace?var-namespace=research&amp;var-pod=training%2D0\""), "{page}");
    }

    #[test]
    fn an_unknown_device_has_no_page() {
        assert_eq!(detail("GPU-9"), None);
        assert_eq!(detail(""), None);
        assert_eq!(detail(&format!("a/b {}", fixture::WHOLE)), None);
        assert!(detail(&format!("<b>/x/y {}", fixture::WHOLE)).unwrap().contains("&lt;b&gt;/x/y on"));
    }
}
