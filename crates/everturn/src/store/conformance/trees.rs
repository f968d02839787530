//! What a page draws of a session: its tree, and how it looks from outside.

use super::bench::{Bench, answer, edit, end, iteration, key, step, turn_at, turn_from};
use super::verdict::{Check, holds, refused, same, there};
use crate::store::{At, Commit, ForkSession, MAX_EXCERPT, NodeKind, TreeNode, TreeQuery};
use crate::{BranchName, Changes, ErrorKind, Event, Message, Point, SessionKey, TurnStatus, Usage, View};

async fn tree(t: &Bench, key: &SessionKey) -> crate::Result<Vec<TreeNode>> {
    Ok(t.second().await?.tree(TreeQuery::of(key.clone())).await?.nodes)
}

fn node(nodes: &[TreeNode], input: &str) -> Check<TreeNode> {
    there(nodes.iter().find(|node| node.input.as_deref() == Some(input)).cloned(), "a turn in the tree")
}

pub(super) async fn turns_hang_where_they_started(t: Bench) -> Check {
    let key = t.session("s").await?;
    let root = t.head(&key).await?;
    let (id, one) = t.snap(&key, "one").await?;
    let two = t.say(&key, "two").await?;
    let side = t.run(turn_at(id, "beside"), "beside").await?;
    let edited = t.store.commit(edit(&key, "later")).await?;
    let nodes = tree(&t, &key).await?;
    same(nodes.len(), 5, "the number of nodes")?;
    same((nodes[0].kind, nodes[0].from, nodes[0].end), (NodeKind::Root, None, root), "the root")?;
    same((node(&nodes, "one")?.from, node(&nodes, "one")?.end), (Some(root), one.point), "the first turn")?;
    same(node(&nodes, "two")?.from, Some(one.point), "where the second turn hangs")?;
    let beside = node(&nodes, "beside")?;
    same((beside.from, beside.end), (Some(one.point), side.point), "where the turn beside it hangs")?;
    same(node(&nodes, "one")?.snapshots[0].id, id, "the snapshot of a turn")?;
    let from = if side.on_head { side.point } else { two.point };
    same((nodes[4].kind, nodes[4].from, nodes[4].end), (NodeKind::Edit, Some(from), edited.point), "the edit")
}

pub(super) async fn a_node_says_what_became_of_it(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.say(&key, "good").await?;
    t.fail(&key, "bad").await?;
    let running = t.begin(&key, "slow").await?;
    let nodes = tree(&t, &key).await?;
    let good = node(&nodes, "good")?;
    same((good.status, good.answer.as_deref()), (TurnStatus::Completed, Some("re: good")), "a turn that completed")?;
    let bad = node(&nodes, "bad")?;
    same(bad.status, TurnStatus::Failed, "a turn that failed")?;
    holds(bad.error.is_some() && !bad.orphaned, "it says why, and is void and not orphaned")?;
    let slow = node(&nodes, "slow")?;
    same((slow.status, slow.turn), (TurnStatus::Running, Some(running.turn)), "a turn that runs")?;
    t.outlive_leases();
    same(node(&tree(&t, &key).await?, "slow")?.status, TurnStatus::Dead, "a turn whose writer is gone")?;
    let again = t.store.take_over(running.turn).await?;
    t.store.end(end(again.fence, "slow")).await?;
    let slow = node(&tree(&t, &key).await?, "slow")?;
    same((slow.status, slow.attempts), (TurnStatus::Completed, 2), "a turn that was taken over")
}

pub(super) async fn heads_and_orphans_are_current(t: Bench) -> Check {
    let key = t.session("s").await?;
    let one = t.say(&key, "one").await?;
    let two = t.say(&key, "two").await?;
    let heads = |node: TreeNode| node.heads.into_iter().map(|name| name.to_string()).collect::<Vec<_>>();
    same(heads(node(&tree(&t, &key).await?, "two")?), vec!["main".to_owned()], "who stands at the end")?;
    t.rewind(&key, one.point).await?;
    let nodes = tree(&t, &key).await?;
    same(heads(node(&nodes, "one")?), vec!["main".to_owned()], "who stands where it was rewound to")?;
    holds(node(&nodes, "two")?.orphaned && !node(&nodes, "one")?.orphaned, "what was rewound is orphaned")?;
    t.branch_off(&key, "kept", two.point).await?;
    let two = node(&tree(&t, &key).await?, "two")?;
    holds(!two.orphaned && two.heads == [BranchName::new("kept")?], "a branch brings it back")
}

pub(super) async fn a_tree_is_read_in_pages(t: Bench) -> Check {
    let key = t.session("s").await?;
    for i in 0..3 {
        let begun = t.begin(&key, &format!("turn {i}")).await?;
        // Inside of it, another one begins and ends beside it.
        t.store.step(step(begun.fence, "half")).await?;
        let start = t.head(&key).await?;
        t.run(turn_from(&key, start, &format!("beside {i}")), "beside").await?;
        t.store.end(end(begun.fence, &format!("turn {i}"))).await?;
    }
    let all = tree(&t, &key).await?;
    same(all.len(), 7, "the number of nodes")?;
    for limit in [1, 2, 3, 7, 100] {
        let (mut found, mut query) = (Vec::new(), TreeQuery::of(key.clone()).limit(limit));
        loop {
            let page = t.second().await?.tree(query.clone()).await?;
            holds(page.nodes.len() <= limit, "a page has at most as many as were asked for")?;
            found.extend(page.nodes);
            let Some(next) = page.next else { break };
            query = query.from(next);
        }
        same(&found, &all, "all pages together")?;
    }
    let forged = TreeQuery::of(key.clone()).from(crate::store::Cursor::from_text("t-1"));
    refused(t.store.tree(forged).await, ErrorKind::Invalid, "a forged cursor")?;
    let unknown = TreeQuery::of(super::bench::key("unknown"));
    refused(t.store.tree(unknown).await, ErrorKind::NotFound, "the tree of an unknown session")
}

pub(super) async fn compactions_forks_and_usage_are_told(t: Bench) -> Check {
    let session = t.session("s").await?;
    let begun = t.begin(&session, "one").await?;
    let inside = t.snapshot_id();
    t.store.step(iteration(begun.fence, "half", inside)).await?;
    let mut said = Event::model("m", Message::model("1"));
    said.usage = Some(Usage::tokens(3, 4));
    let one = t.store.end(crate::store::EndTurn::completed(begun.fence, Changes::new().event(said))).await?;
    let view = Changes::new().view(View::new(2, vec![Message::user("counting")]));
    t.store.commit(Commit::new(session.clone(), view)).await?;
    let nodes = tree(&t, &session).await?;
    let first = node(&nodes, "one")?;
    same(first.usage, Usage::tokens(3, 4), "what a turn cost")?;
    same(first.snapshots.iter().map(|snapshot| snapshot.id).collect::<Vec<_>>(), vec![inside], "snapshots inside it")?;
    same(nodes[2].kind, NodeKind::Compaction, "a compaction")?;
    let at = At::Point(session.clone(), one.point);
    t.store.fork(ForkSession::at(at).id(crate::SessionId::new("fork")?)).await?;
    t.say(&key("fork"), "own").await?;
    let nodes = tree(&t, &key("fork")).await?;
    same((nodes.len(), nodes[0].kind, nodes[0].from), (2, NodeKind::Root, Some(one.point)), "a fork's root")?;
    same(nodes[1].from, Some(nodes[0].end), "a fork's first turn")
}

pub(super) async fn a_preview_says_how_a_session_looks(t: Bench) -> Check {
    let session = t.session("s").await?;
    let empty = t.session("empty").await?;
    t.say(&session, "one").await?;
    let long = "é".repeat(MAX_EXCERPT + 1);
    let begun = t.begin(&session, "two").await?;
    t.store.end(crate::store::EndTurn::completed(begun.fence, answer(&long))).await?;
    t.fail(&session, "bad").await?;
    let keys = [session.clone(), key("unknown"), empty];
    let found = t.second().await?.previews(&keys).await?;
    holds(found.len() == 3 && found[1].is_none(), "what does not exist has no preview")?;
    let preview = there(found[0].clone(), "a preview")?;
    same(preview.messages, 4, "the messages on the way to the head")?;
    let last = t.records(&session).await?.last().map(|record| record.seq);
    same(Some(preview.log), last, "the end of the log")?;
    let said = there(preview.last_message, "the last message")?;
    holds(said.text.chars().count() == MAX_EXCERPT + 1 && said.text.ends_with('…'), "long texts are cut")?;
    let nothing = there(found[2].clone(), "a preview")?;
    same((nothing.messages, nothing.last_message), (0, None), "an empty session's preview")?;
    t.rewind(&session, Point::new(1)).await?;
    let found = t.second().await?.previews(&[session]).await?;
    same(there(found[0].clone(), "a preview")?.messages, 0, "the messages after a rewind")
}
