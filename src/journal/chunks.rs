use super::query::{AllocationsResponse, Query};

/// Holdings in a chunk: about 150 KiB of JSON.
const CHUNK: usize = 100;
/// Chunks with fewer holdings than their limit: the query matches few of the holdings. After this many the response
/// ends with a cursor.
const SPARSE_CHUNKS: usize = 10;

/// A response as JSON, in chunks that are made when they are requested: for a slow reader one chunk is in memory, not
/// the whole response. The whole is an `AllocationsResponse` with its fields in another order.
pub struct ResponseChunks {
    run: Box<dyn FnMut(&Query) -> AllocationsResponse + Send>,
    query: Query,
    /// Holdings that the limit still permits.
    left: usize,
    sparse: usize,
    problem: Option<String>,
    begun: bool,
    first_record: bool,
    ended: bool,
}

impl ResponseChunks {
    /// `run` returns at most the limit of ended holdings, and a cursor unless they are the last.
    #[must_use]
    pub fn new(query: Query, run: impl FnMut(&Query) -> AllocationsResponse + Send + 'static) -> Self {
        Self {
            run: Box::new(run),
            left: query.limit,
            query,
            sparse: 0,
            problem: None,
            begun: false,
            first_record: true,
            ended: false,
        }
    }

    fn head(&mut self, response: &AllocationsResponse) -> Vec<u8> {
        self.begun = true;
        let (node, journal) = (response.node.clone(), response.journal);
        let head = AllocationsResponse {
            node,
            journal,
            at: response.at,
            since: response.since,
            until: response.until,
            ..AllocationsResponse::default()
        };
        let mut text = json(&head);
        // "allocations":[]} comes last.
        text.truncate(text.len() - 2);
        text
    }

    fn tail(&mut self, next: Option<&str>) -> Vec<u8> {
        self.ended = true;
        let mut text = b"]".to_vec();
        for (name, value) in [("problem", self.problem.as_deref()), ("next", next)] {
            if let Some(value) = value {
                text.extend(format!(",\"{name}\":").bytes());
                text.extend(json(&value));
            }
        }
        text.push(b'}');
        text
    }
}

impl Iterator for ResponseChunks {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        if self.ended {
            return None;
        }
        self.query.limit = self.left.min(CHUNK);
        let response = (self.run)(&self.query);
        let mut text = if self.begun { vec![] } else { self.head(&response) };
        for record in &response.allocations {
            if !std::mem::replace(&mut self.first_record, false) {
                text.push(b',');
            }
            text.extend(json(record));
        }
        self.problem = response.problem.or(self.problem.take());
        self.sparse += usize::from(response.allocations.len() < self.query.limit);
        self.left = self.left.saturating_sub(response.allocations.len());
        let next = response.next.as_deref();
        match next.and_then(super::Cursor::parse) {
            Some(cursor) if self.left > 0 && self.sparse < SPARSE_CHUNKS => self.query.after = cursor,
            _ => text.extend(self.tail(next)),
        }
        Some(text)
    }
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("strings and numbers")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{AllocationRecord, Cursor};

    fn records(count: u64) -> Vec<AllocationRecord> {
        let record = |id| AllocationRecord { id, ..AllocationRecord::default() };
        (1..=count).map(record).collect()
    }

    /// A journal with this number of ended holdings, of which every `step`-th matches; it reads 500 for each query.
    fn journal(count: u64, step: u64) -> impl FnMut(&Query) -> AllocationsResponse + Send {
        move |query| {
            let mut response =
                AllocationsResponse { node: "node".into(), journal: true, ..AllocationsResponse::default() };
            for (walked, id) in (query.after.1 + 1..=count).enumerate() {
                if walked == 500 || response.allocations.len() == query.limit {
                    response.next = Some(format!("1:{}", id - 1));
                    return response;
                }
                if id % step == 0 {
                    response.allocations.push(AllocationRecord { id, ..AllocationRecord::default() });
                }
            }
            response.problem = Some("of the last \"chunk\"".into());
            response
        }
    }

    fn whole(chunks: ResponseChunks) -> (AllocationsResponse, usize) {
        let chunks: Vec<Vec<u8>> = chunks.collect();
        let largest = chunks.iter().map(Vec::len).max().unwrap();
        (serde_json::from_slice(&chunks.concat()).unwrap(), largest)
    }

    #[test]
    fn chunks_make_the_response_and_none_is_large() {
        let query = |limit| Query { limit, ..Query::all() };
        let (response, largest) = whole(ResponseChunks::new(query(5000), journal(2345, 1)));
        assert_eq!(response.allocations, records(2345));
        assert_eq!((response.next, response.problem.as_deref()), (None, Some("of the last \"chunk\"")));
        assert!(largest <= (CHUNK + 1) * json(&records(1)[0]).len() * 2, "{largest} bytes");
        let (response, _) = whole(ResponseChunks::new(query(250), journal(2345, 1)));
        assert_eq!((response.allocations.len(), response.next.as_deref()), (250, Some("1:250")));
        let (response, _) = whole(ResponseChunks::new(query(10), journal(0, 1)));
        assert_eq!((response.allocations.len(), response.next), (0, None));
    }

    #[test]
    fn a_filter_that_matches_nothing_ends_with_a_cursor_and_goes_on_there() {
        let (response, _) = whole(ResponseChunks::new(Query::all(), journal(1_000_000, 1_000_000)));
        assert_eq!((response.allocations.len(), response.next.as_deref()), (0, Some("1:5000")));
        let mut query = Query::all();
        let mut found = vec![];
        loop {
            let (response, _) = whole(ResponseChunks::new(query.clone(), journal(20_000, 7_000)));
            found.extend(response.allocations.iter().map(|record| record.id));
            match response.next.as_deref().and_then(Cursor::parse) {
                Some(next) => query.after = next,
                None => break,
            }
        }
        assert_eq!(found, [7_000, 14_000]);
    }
}
