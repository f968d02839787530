//! Following a session or a snapshot.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Notify;

use super::{Backend, Inner};
use crate::snapshot::SnapshotStatus;
use crate::store::{SnapshotRef, Watch, WatchEvent};
use crate::{Point, Result, SnapshotId};

pub(super) struct SessionWatch<B: Backend> {
    pub(super) inner: Arc<Inner<B>>,
    pub(super) num: u64,
    pub(super) seen: u64,
    pub(super) news: Arc<Notify>,
}

#[async_trait]
impl<B: Backend> Watch for SessionWatch<B> {
    async fn next(&mut self) -> Result<WatchEvent> {
        loop {
            let news = self.news.clone();
            let told = news.notified();
            tokio::pin!(told);
            told.as_mut().enable();
            let num = self.num;
            let row = self.inner.backend.read(move |read, _| read.session(num)).await?;
            match row.filter(|row| !row.deleted) {
                None => return Ok(WatchEvent::Deleted),
                Some(row) if row.next_seq > self.seen => {
                    self.seen = row.next_seq;
                    return Ok(WatchEvent::Written(Point::new(row.next_seq - 1)));
                }
                Some(_) => {}
            }
            let _ = tokio::time::timeout(self.inner.config.poll, told).await;
        }
    }
}

pub(super) struct SnapshotWatch<B: Backend> {
    pub(super) inner: Arc<Inner<B>>,
    pub(super) id: SnapshotId,
    pub(super) seen: Option<SnapshotStatus>,
    pub(super) news: Arc<Notify>,
}

#[async_trait]
impl<B: Backend> Watch for SnapshotWatch<B> {
    async fn next(&mut self) -> Result<WatchEvent> {
        loop {
            let news = self.news.clone();
            let told = news.notified();
            tokio::pin!(told);
            told.as_mut().enable();
            let status = self.inner.snapshot(SnapshotRef::Id(self.id)).await?.map(|snapshot| snapshot.status);
            match status {
                None => return Ok(WatchEvent::Deleted),
                Some(status) if self.seen != Some(status) => {
                    self.seen = Some(status);
                    return Ok(WatchEvent::Snapshot(status));
                }
                Some(_) => {}
            }
            let _ = tokio::time::timeout(self.inner.config.poll, told).await;
        }
    }
}
