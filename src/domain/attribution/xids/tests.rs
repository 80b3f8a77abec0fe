use std::time::Duration;

use super::*;
use crate::domain::attribution::Retention;
use crate::domain::holders::Holdings;
use crate::domain::model::{Gpu, MigDevice, SharingForm, UnixSeconds, XidInstance};
use crate::test_data::{self, at_millisecond as moment};

const GPU: &str = "GPU-1";
const RETENTION: Duration = Duration::from_secs(300);

#[test]
fn it_is_the_one_holders_or_unattributed() {
    for (holders, expected) in [
        (&["alone"][..], counted("alone", 2)),
        // Two slots of one container.
        (&["alone", "alone"], counted("alone", 2)),
        (&["one", "two"], vec![]),
        (&[], vec![]),
    ] {
        assert_eq!(XidNode::held_by(holders).at(0, &[xid(0, 2)]), expected, "{holders:?}");
    }
}

#[test]
fn on_mig_it_is_who_holds_the_instance() {
    let mut node = XidNode::partitioned();
    node.hold("seventy", Some("MIG-70"));
    node.hold("eighty", Some("MIG-80"));
    let row = |pod: &str, mig: &str, count| (pod.to_owned(), Some(mig.to_owned()), 31, count);
    assert_eq!(node.at(0, &[on((8, Some(0)), xid(0, 1))]), [row("eighty", "MIG-80", 1)]);
    assert_eq!(node.at(1, &[xid(1, 1)]), [row("eighty", "MIG-80", 1)], "the whole GPU has two holders");
    node.at(2, &[on((7, None), xid(2, 1))]);
    let all = [row("eighty", "MIG-80", 1), row("seventy", "MIG-70", 1)];
    assert_eq!(node.at(3, &[]), all, "one of two compute instances is held");
    node.hold("seventy-one", Some("MIG-71"));
    assert_eq!(node.at(4, &[on((7, None), xid(4, 1))]), all, "both are held");
}

#[test]
fn a_count_stays_with_its_account_and_is_read_twice() {
    let mut node = XidNode::held_by(&["alone"]);
    node.at(0, &[xid(0, 1)]);
    assert_eq!(node.at(3_600_000, &[]), counted("alone", 1), "the account lives");
    node.accounts.clear();
    assert_eq!(node.at(3_601_000, &[]), counted("alone", 1), "nobody has read it");
    node.scrapes = 2;
    assert_eq!(node.at(3_602_000, &[]), vec![]);
}

#[test]
fn counting_began_with_the_account_or_the_first_xid() {
    let created = |node: &mut XidNode| {
        node.at(1000, &[xid(1000, 1)]);
        node.xids.counts.values().map(|count| count.xid.created.0).collect::<Vec<_>>()
    };
    let mut node = XidNode::held_by(&["holder"]);
    assert_eq!(created(&mut node), [7.0]);
    let mut node = XidNode::held_by(&["holder"]);
    node.accounts.clear();
    assert_eq!(created(&mut node), [1.7e9 + 1.0]);
}

/// The holders, and the state under test.
#[derive(Default)]
struct XidNode {
    xids: ContainerXids,
    holdings: Holdings,
    inventory: Inventory,
    accounts: Vec<Account>,
    scrapes: u64,
}

impl XidNode {
    fn held_by(pods: &[&str]) -> Self {
        let mut node = Self::default();
        pods.iter().for_each(|pod| node.hold(pod, None));
        node
    }

    /// A GPU of three MIG devices: two compute instances in GPU instance 7, one in 8.
    fn partitioned() -> Self {
        let mig = |name, gpu_instance, compute_instance| MigDevice {
            compute_instance,
            ..test_data::mig(name, gpu_instance, "1g.10gb", 1)
        };
        let gpu = Gpu {
            mig_slices: Some(7),
            mig_enabled: Some(true),
            mig_devices: vec![mig("MIG-70", 7, 0), mig("MIG-71", 7, 1), mig("MIG-80", 8, 0)],
            ..Gpu::listed(GPU.into(), 0)
        };
        Self { inventory: test_data::inventory([gpu]), ..Self::default() }
    }

    fn hold(&mut self, pod: &str, mig: Option<&str>) {
        let holding = test_data::holding(GPU, SharingForm::Exclusive, 1.0);
        let key = HoldingKey { mig: mig.map(Into::into), ..test_data::key(pod, GPU) };
        let account = Account {
            holding: Some(holding.clone()),
            ..Account::new(key.container.clone(), GPU.into(), key.mig.clone(), UnixSeconds(7.0))
        };
        self.holdings.by_key.insert(key, holding);
        self.accounts.push(account);
    }

    /// The counts as (pod, MIG device, code, count) at a time in milliseconds.
    fn at(&mut self, at: u64, events: &[XidEvent]) -> Vec<(String, Option<String>, u32, u64)> {
        let class = XidClass::Application;
        let received: Vec<_> = events.iter().map(|event| ClassedXid { event: event.clone(), class }).collect();
        let observation = Observation {
            now: moment(at),
            holdings: &self.holdings,
            inventory: &self.inventory,
            readings: &BTreeMap::new(),
            processes: &BTreeMap::new(),
            retention: Retention { time: RETENTION, scrapes: self.scrapes },
        };
        let xids = self.xids.advance(&received, &self.accounts, &observation);
        let row = |xid: ContainerXid| {
            (xid.container.pod.to_string(), xid.mig.map(|mig| mig.as_str().to_owned()), xid.code, xid.count)
        };
        xids.into_iter().map(row).collect()
    }
}

fn xid(at: u64, count: u64) -> XidEvent {
    XidEvent { count, ..test_data::xid(moment(at), GPU, 31) }
}

fn on(instance: (u32, Option<u32>), event: XidEvent) -> XidEvent {
    XidEvent { instance: Some(XidInstance { gpu_instance: instance.0, compute_instance: instance.1 }), ..event }
}

fn counted(pod: &str, count: u64) -> Vec<(String, Option<String>, u32, u64)> {
    vec![(pod.to_owned(), None, 31, count)]
}
