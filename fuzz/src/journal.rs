use crate::domain::model::UnixSeconds;
use crate::journal::{AllocationsResponse, By, Prices, Query, Usage, report};

const NOW: UnixSeconds = UnixSeconds(1_800_000_000.0);

/// The query string of `/api/v1/allocations`.
pub fn journal_query(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match Query::parse(&text, NOW) {
        Ok(query) => {
            let again = Query::parse(&query.text(), NOW);
            assert_eq!(again.ok(), Some(query), "{text:?}");
        }
        Err(problem) => assert!(!problem.to_string().is_empty(), "{text:?}"),
    }
}

/// What an agent answers to `podmeter usage`, in JSON.
pub fn journal_answer(bytes: &[u8]) {
    let Ok(answer) = serde_json::from_slice::<AllocationsResponse>(bytes) else { return };
    let records = &answer.allocations;
    let prices = Prices::new(vec!["*1*=2.8".parse().expect("a price")], None).expect("one price");
    for by in [By::Namespace, By::Pod, By::Device] {
        let usage = Usage::sum(records, by, (answer.since, answer.until), &prices);
        assert_eq!(usage.total.holdings, usage.rows.iter().map(|row| row.totals.holdings).sum::<u64>(), "{answer:?}");
        let lines = report::usage_table(&usage, by).lines().count();
        assert!(lines >= usage.rows.len() + 3, "{usage:?}");
        assert!(report::usage_csv(&usage, by).lines().count() > usage.rows.len(), "{usage:?}");
        serde_json::to_string(&usage).expect("strings and numbers");
    }
    for text in [report::holdings_table(records, &prices), report::holdings_csv(records, &prices)] {
        assert!(text.lines().count() > records.len(), "{answer:?}");
    }
    let written = serde_json::to_string(&answer).expect("strings and numbers");
    serde_json::from_str::<AllocationsResponse>(&written).expect("what was written can be read");
}
