# SPDX-License-Identifier: Apache-2.0
"""Read-only views of a session for the control socket: status, tensors, residency, plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sentineld.base.errors import SentinelError
from sentineld.heat.session import TEMPERATURE, HeatSession
from sentineld.machine.shared import Share
from sentineld.model.kernel_events import Disturbance
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.plan.by_layer import bytes_by_layer
from sentineld.plan.explain import plan_json, plan_text, tensors_json
from sentineld.service.disturbances import in_words
from sentineld.session.session import Session


def describe(session: Session, disturbances: Sequence[Disturbance]) -> dict[str, Any]:
    """A session's entry in the answer to `sentinelctl status`.

    disturbances: moves, reclaim and huge-page collapses of the process's pages that the daemon did
        not cause (see Disturbance). The caller gets the disturbances of all sessions in a single
        read, because each read fetches the counters of all watched processes from the kernel.
    """
    words, status = session.link.segment.words(), session.lifecycle.status
    goal, following, meter = session.goal, session.following, session.last_meter
    planned, managed, correcting = following.planned, following.managed, following.correcting
    residency, energy, moves = session.link.residency, following.energy, following.moves()
    share = session.machine.share_of(session.link)
    return {
        "pid": session.link.pid,
        "uid": session.link.uid,
        "state": str(status.state),
        "reason": status.reason,
        "policy": goal.policy if goal else "",
        "fast": goal.fast_text if goal else "",
        "rule": session.rule,
        "share": asdict(share) if share is not None else None,
        "budget_bytes": planned.budget_bytes if planned else 0,
        "charged_bytes": managed.fast_bytes() if managed else 0,
        "resident_bytes": managed.by_tier() if managed else [],
        "promoted_bytes": moves.bytes_moved("promote"),
        "demoted_bytes": moves.bytes_moved("demote"),
        "late_moves": moves.late_moves,
        "peak_bytes": planned.profile.peak_bytes if planned else 0,
        "source": planned.profile.source if planned else "",
        "untold_pages": planned.profile.untold_pages if planned else 0,
        "step": words.step,
        "processes": session.machine.tree(session.link.pid),
        "group": "",
        "cgroup": "",
        "job": session.link.job.message() if session.link.job else None,
        "layout_id": words.layout_id,
        "plans": len(following.shapes),
        "sizes_vary": planned.shape.sizes_vary if planned else False,
        "small_bytes": words.small_bytes,
        "fallback_bytes": words.fallback_bytes,
        "diverged_steps": words.diverged_steps,
        "barrier_timeouts": words.barrier_timeouts,
        "barrier_wait_ns": words.barrier_wait_ns,
        "stalls": managed.stall_decisions()._asdict() if managed else None,
        "emulated": session.machine.substrate.emulated,
        "delay_owed_ns": residency.owed_ns if residency else 0,
        "delay_paid_ns": residency.paid_ns if residency else 0,
        "paging": asdict(paging.counts()) if (paging := session.link.paging) else None,
        "fast_share": meter.fast_share if meter else None,
        "predicted_fast_share": managed.plan.predicted.fast_share if managed else None,
        "predicted_step_ns": managed.plan.predicted.step_ns if managed else None,
        "fast_step_ns": managed.profile.step_ns if managed else None,
        "corrections": dict(following.corrections),
        "migration_bytes_per_s": correcting.tiers.migration_bytes_per_s if correcting else 0.0,
        "energy": asdict(used) if energy and (used := energy.per_step()) else None,
        "disturbances": list(disturbances),
        "disturbed": in_words(disturbances),
        "swap": None,
    }


def describe_heat(session: HeatSession, share: Share | None) -> dict[str, Any]:
    """The entry of a session of policy `temperature` in the answer to `sentinelctl status`: the
    fields of describe() that apply to it, and `swap`, the session's Figures (heat/figures.py).

    "group" is the title of the tree or the cgroup, empty for a single process. "pid" is the single
    process, the root of a tree (see Target.pid in heat/target.py), or one of the processes of a
    cgroup (0 if the cgroup has none)."""
    status, figures = session.status, session.figures
    return {
        "pid": session.pid,
        "uid": session.uid,
        "state": str(status.state),
        "reason": status.reason,
        "policy": TEMPERATURE,
        "fast": session.goal.fast_text,
        "rule": "",
        "share": asdict(share) if share is not None else None,
        "budget_bytes": figures.budget_bytes,
        "charged_bytes": figures.resident_bytes,
        "peak_bytes": figures.peak_bytes,
        "source": figures.observed_by,
        "step": 0,
        "processes": list(figures.processes),
        "group": session.target.title if session.target.is_group else "",
        "cgroup": session.target.cgroup,
        "job": None,
        "paging": None,
        "energy": None,
        "disturbances": [],
        "disturbed": "",
        "swap": asdict(figures),
    }


def tensors(session: Session) -> list[dict[str, Any]]:
    """The tensors of the session's profile. Raises SentinelError if there is no profile yet."""
    managed, planned = session.following.managed, session.following.planned
    if managed is not None:
        return tensors_json(managed.plan, managed.profile)
    if planned is None:
        raise session.not_yet("has no profile")
    return tensors_json(None, planned.profile)


def live_plan(session: Session) -> tuple[Plan, Profile, list[list[Any]]]:
    """The live plan, its profile, and the names of persistent tensors as [address, role, name].

    Raises SentinelError if there is no plan yet.
    """
    managed = session.following.managed
    if managed is None:
        raise session.not_yet("has no plan")
    names = session.tensor_names
    return managed.plan, managed.profile, [[address, *named] for address, named in names.items()]


def residency_by_layer(session: Session) -> dict[str, Any]:
    """The resident bytes of the live plan's tensors at this moment, by layer and tier.

    "other_bytes" are the bytes by tier that belong to no layer; see bytes_by_layer(). Raises
    SentinelError if no plan is live.
    """
    managed, tiers = session.following.managed, session.machine.tiers
    if managed is None or tiers is None:
        raise session.not_yet("has no plan")
    pages, tier_count = managed.page_tiers(), len(tiers.tiers)
    layers, other = bytes_by_layer(managed.plan, managed.profile, pages, tier_count)
    return {
        "stretch": pages.stretch,
        "layers": [{"layer": one.layer, "bytes": list(one.bytes_by_tier)} for one in layers],
        "other_bytes": other,
    }


def explain(session: Session, with_bound: bool) -> dict[str, Any]:
    """The plan as text and as values for JSON.

    with_bound: also compute the fast-share bound, in a child process.

    Raises SentinelError if there is no plan yet, or if the bound cannot be computed or does not
    apply.
    """
    managed, tiers = session.following.managed, session.machine.tiers
    if managed is None or tiers is None:
        raise session.not_yet("has no plan")
    if with_bound and tiers.paged:
        raise SentinelError(
            "wrong-state",
            "the fast-share bound does not apply to paged tiers, where demoting an unchanged page"
            " takes no time",
            "leave out --bound",
        )
    plan, profile = managed.plan, managed.profile
    explained = {"text": plan_text(plan, profile), **plan_json(plan, profile)}
    if with_bound:
        planners, uid = session.machine.planners, session.link.uid
        bound = planners.bound(uid, profile, tiers, plan.budget_bytes)
        explained["bound"] = {"fast_share": bound.fast_share, "fixed_share": bound.fixed_share}
    return explained
