use axum::body::Bytes;
use tokio::sync::Mutex;
use tokio::task::JoinError;

/// A response body that is made once per key, on a blocking thread, and shared by all requests meanwhile.
pub(super) struct CachedBody<K>(Mutex<Option<(K, Bytes)>>);

impl<K> Default for CachedBody<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: PartialEq> CachedBody<K> {
    /// `key`: what the body depends on. An error where `make` panicked.
    pub async fn get(&self, key: K, make: impl FnOnce() -> Vec<u8> + Send + 'static) -> Result<Bytes, JoinError> {
        let mut last = self.0.lock().await;
        if let Some((made_for, bytes)) = &*last
            && *made_for == key
        {
            return Ok(bytes.clone());
        }
        // Not both in memory at once.
        *last = None;
        let bytes = Bytes::from(tokio::task::spawn_blocking(make).await?);
        *last = Some((key, bytes.clone()));
        Ok(bytes)
    }

    /// Drops the body.
    pub fn forget(&self) {
        // Locked: a newer one is being made.
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
    async fn requests_share_a_body_and_a_failure_is_not_kept() {
        let (body, made) = (Arc::new(CachedBody::default()), Arc::new(AtomicUsize::new(0)));
        let get = |key: u64, fails: bool| {
            let (body, made) = (Arc::clone(&body), Arc::clone(&made));
            tokio::spawn(async move {
                let make = move || {
                    let number = made.fetch_add(1, Ordering::Relaxed);
                    assert!(!fails);
                    vec![u8::try_from(number).unwrap()]
                };
                body.get(key, make).await.ok()
            })
        };
        assert_eq!(get(1, true).await.unwrap(), None);
        let requests: Vec<_> = (0..10).map(|_| get(1, false)).collect();
        for one in requests {
            assert_eq!(one.await.unwrap().unwrap(), [1][..]);
        }
        assert_eq!(get(2, false).await.unwrap().unwrap(), [2][..]);
        body.forget();
        assert_eq!(get(2, false).await.unwrap().unwrap(), [3][..]);
    }
}
