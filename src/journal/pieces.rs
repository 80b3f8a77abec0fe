use super::query::{Answer, Query};

/// Holdings in a piece: some 150 KiB of JSON.
const PIECE: usize = 100;
/// Pieces without all the holdings that they could have: there the journal was read for what is not in it. After these the
/// answer ends with a cursor.
const POOR_PIECES: usize = 10;

/// An answer as JSON, in pieces that are made when they are asked for: whoever reads slowly keeps one of them in memory and
/// not the answer. The whole is an `Answer` with its fields in another order.
pub struct Pieces {
    ask: Box<dyn FnMut(&Query) -> Answer + Send>,
    query: Query,
    /// Holdings that may still be asked for.
    left: usize,
    poor: usize,
    problem: Option<String>,
    begun: bool,
    first_record: bool,
    ended: bool,
}

impl Pieces {
    /// `ask` answers a query with at most its limit of ended holdings, and a cursor unless it is the last.
    #[must_use]
    pub fn new(query: Query, ask: impl FnMut(&Query) -> Answer + Send + 'static) -> Self {
        Self {
            ask: Box::new(ask),
            left: query.limit,
            query,
            poor: 0,
            problem: None,
            begun: false,
            first_record: true,
            ended: false,
        }
    }

    fn head(&mut self, answer: &Answer) -> Vec<u8> {
        self.begun = true;
        let (node, journal) = (answer.node.clone(), answer.journal);
        let head =
            Answer { node, journal, at: answer.at, since: answer.since, until: answer.until, ..Answer::default() };
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

impl Iterator for Pieces {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        if self.ended {
            return None;
        }
        self.query.limit = self.left.min(PIECE);
        let answer = (self.ask)(&self.query);
        let mut text = if self.begun { vec![] } else { self.head(&answer) };
        for record in &answer.allocations {
            if !std::mem::replace(&mut self.first_record, false) {
                text.push(b',');
            }
            text.extend(json(record));
        }
        self.problem = answer.problem.or(self.problem.take());
        self.poor += usize::from(answer.allocations.len() < self.query.limit);
        self.left = self.left.saturating_sub(answer.allocations.len());
        let next = answer.next.as_deref();
        match next.and_then(super::Cursor::parse) {
            Some(cursor) if self.left > 0 && self.poor < POOR_PIECES => self.query.after = cursor,
            _ => text.extend(self.tail(next)),
        }
        Some(text)
    }
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("an answer is strings and numbers")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{Cursor, Record};

    fn records(count: u64) -> Vec<Record> {
        let record = |id| Record { id, ..Record::default() };
        (1..=count).map(record).collect()
    }

    /// A journal of so many ended holdings, of which every `step`-th is wanted; it looks at 500 for each question.
    fn journal(count: u64, step: u64) -> impl FnMut(&Query) -> Answer + Send {
        move |query| {
            let mut answer = Answer { node: "node".into(), journal: true, ..Answer::default() };
            for (walked, id) in (query.after.1 + 1..=count).enumerate() {
                if walked == 500 || answer.allocations.len() == query.limit {
                    answer.next = Some(format!("1:{}", id - 1));
                    return answer;
                }
                if id % step == 0 {
                    answer.allocations.push(Record { id, ..Record::default() });
                }
            }
            answer.problem = Some("of the last \"piece\"".into());
            answer
        }
    }

    fn whole(pieces: Pieces) -> (Answer, usize) {
        let pieces: Vec<Vec<u8>> = pieces.collect();
        let largest = pieces.iter().map(Vec::len).max().unwrap();
        (serde_json::from_slice(&pieces.concat()).unwrap(), largest)
    }

    #[test]
    fn pieces_make_the_answer_and_none_is_large() {
        let query = |limit| Query { limit, ..Query::all() };
        let (answer, largest) = whole(Pieces::new(query(5000), journal(2345, 1)));
        assert_eq!(answer.allocations, records(2345));
        assert_eq!((answer.next, answer.problem.as_deref()), (None, Some("of the last \"piece\"")));
        assert!(largest <= (PIECE + 1) * json(&records(1)[0]).len() * 2, "{largest} bytes");
        let (answer, _) = whole(Pieces::new(query(250), journal(2345, 1)));
        assert_eq!((answer.allocations.len(), answer.next.as_deref()), (250, Some("1:250")));
        let (answer, _) = whole(Pieces::new(query(10), journal(0, 1)));
        assert_eq!((answer.allocations.len(), answer.next), (0, None));
    }

    #[test]
    fn a_filter_that_matches_nothing_ends_with_a_cursor_and_goes_on_there() {
        let (answer, _) = whole(Pieces::new(Query::all(), journal(1_000_000, 1_000_000)));
        assert_eq!((answer.allocations.len(), answer.next.as_deref()), (0, Some("1:5000")));
        let mut query = Query::all();
        let mut found = vec![];
        loop {
            let (answer, _) = whole(Pieces::new(query.clone(), journal(20_000, 7_000)));
            found.extend(answer.allocations.iter().map(|record| record.id));
            match answer.next.as_deref().and_then(Cursor::parse) {
                Some(next) => query.after = next,
                None => break,
            }
        }
        assert_eq!(found, [7_000, 14_000]);
    }
}
