use axum::body::Bytes;
use tokio::sync::Mutex;
use tokio::task::JoinError;

/// An answer that all share who ask while it would be the same: made once, on a thread that may take its time, so that a
/// crowd at the page costs no more than one visitor.
pub(super) struct Answer<K>(Mutex<Option<(K, Bytes)>>);

impl<K> Default for Answer<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: PartialEq> Answer<K> {
    /// `key`: what the answer depends on. A failure is told to who asked, and the next one tries again.
    pub async fn get<E: Send + 'static>(
        &self,
        key: K,
        make: impl FnOnce() -> Result<Vec<u8>, E> + Send + 'static,
    ) -> Result<Result<Bytes, E>, JoinError> {
        let mut last = self.0.lock().await;
        if let Some((made_for, bytes)) = &*last
            && *made_for == key
        {
            return Ok(Ok(bytes.clone()));
        }
        // The old one shall not lie beside the new one.
        *last = None;
        let made = tokio::task::spawn_blocking(make).await?.map(Bytes::from);
        if let Ok(bytes) = &made {
            *last = Some((key, bytes.clone()));
        }
        Ok(made)
    }

    /// Nobody keeps an answer for nobody.
    pub fn forget(&self) {
        // Who holds the lock makes a newer one.
        if let Ok(mut last) = self.0.try_lock() {
            *last = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_crowd_shares_one_answer_and_a_failure_is_not_kept() {
        let (answer, made) = (Arc::new(Answer::default()), Arc::new(AtomicUsize::new(0)));
        let ask = |key: u64, fails: bool| {
            let (answer, made) = (Arc::clone(&answer), Arc::clone(&made));
            tokio::spawn(async move {
                let make = move || {
                    let number = made.fetch_add(1, Ordering::Relaxed);
                    if fails { Err(number) } else { Ok(vec![u8::try_from(number).unwrap()]) }
                };
                answer.get(key, make).await.unwrap()
            })
        };
        assert_eq!(ask(1, true).await.unwrap(), Err(0));
        let crowd: Vec<_> = (0..10).map(|_| ask(1, false)).collect();
        for one in crowd {
            assert_eq!(one.await.unwrap().unwrap(), [1][..]);
        }
        assert_eq!(ask(2, false).await.unwrap().unwrap(), [2][..]);
        answer.forget();
        assert_eq!(ask(2, false).await.unwrap().unwrap(), [3][..]);
    }
}
