"""`timeslice run`: a command that holds a group, with its whole process tree in the job's context."""

from __future__ import annotations

import os
import sys
import threading
import time

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb2
from timeslice._processes import REGISTERED, identify, node_name
from timeslice.cli.errors import CommandError
from timeslice.cli.run_cgroup import Cgroup, make_cgroup
from timeslice.cli.run_devices import visible_devices
from timeslice.cli.run_plan import RunPlan
from timeslice.cli.run_process import CommandProcess, NotPlaced, check_command
from timeslice.cli.run_registration import TreeRegistration, ask_accelerators
from timeslice.cli.run_signals import Interrupted, Signals
from timeslice.cli.run_waiting import Progress
from timeslice.orchestrator.client import TimeSliceOrchestratorClient
from timeslice.orchestrator.exceptions import OrchestratorError, OrchestratorLeaseLostError
from timeslice.orchestrator.types import LostLease, RevokeNotice, SharedLease

GIVE_BACK_S = 30.0
"""For giving the group back: an orchestrator that restarts is waited for, one that is gone not for ever."""


def run_command(plan: RunPlan) -> int:
    """Run the command; returns its exit code.

    Raises:
        CommandError: it was not started; the text says why.
    """
    signals = Signals()
    process, cgroup = _start(plan, signals)
    signals.handle()
    registration = TreeRegistration(plan.agent, _workload(plan, process, cgroup))
    try:
        signals.wait_for(registration.start)
        REGISTERED.add(plan.job, identify([process.pid], node_name(os.environ)))
        if plan.holds:
            return _Holder(plan, signals).run(process)
        process.go()
        return process.wait(say)
    except Interrupted as signalled:
        return 128 + signalled.number
    finally:
        process.give_up()
        registration.close()
        if process.has_left_processes():
            say(f"processes of the command are still there; they stay in the context of job {plan.job}, and are frozen"
                " when another job gets the group")  # fmt: skip
        if cgroup is not None:
            cgroup.remove()


def say(text: str) -> None:
    print(f"timeslice run: {text}", file=sys.stderr, flush=True)


def _start(plan: RunPlan, signals: Signals) -> tuple[CommandProcess, Cgroup | None]:
    """The process that will be the command, in a cgroup of its own where that can be."""
    check_command(plan.words[0], plan.env)
    devices, notes = visible_devices(ask_accelerators(plan.agent), plan.group, plan.env)
    env = {**plan.env, **devices}
    cgroup = make_cgroup(os.getpid())
    if cgroup is not None:
        try:
            process = CommandProcess(plan.words, env, cgroup, signals)
        except NotPlaced:
            cgroup.remove()
            cgroup = None
    if cgroup is None:
        process = CommandProcess(plan.words, env, None, signals)
    if plan.verbose:
        how = f"cgroup {cgroup.folder}" if cgroup is not None else "ancestry, and TIMESLICE_TREE in the environment"
        say(f"job {plan.job}, group {plan.group}; its processes are known by {how}")
        for note in [*notes, *plan.notes]:
            say(note)
    return process, cgroup


def _workload(plan: RunPlan, process: CommandProcess, cgroup: Cgroup | None) -> pb2.RegisterWorkload:
    tree = pb2.ProcessTree(root_pid=process.pid, keeper_pid=os.getpid(), marker=plan.marker)
    if cgroup is not None:
        tree.cgroup_controllers = cgroup.controllers
    return pb2.RegisterWorkload(job_id=plan.job, group=plan.group, tree=tree)


class _Holder:
    """Holds the group around the command, and tells people what becomes of that."""

    def __init__(self, plan: RunPlan, signals: Signals) -> None:
        self._plan, self._signals = plan, signals
        self._is_over = threading.Event()
        self._client = TimeSliceOrchestratorClient(
            plan.target,
            job_id=plan.job,
            group_id=plan.group,
            on_revoke=self._revoked,
            on_lost=self._lost,
            on_shared=self._shared,
        )

    def run(self, process: CommandProcess) -> int:
        is_held = False
        try:
            self._acquire()
            is_held = True
            process.go()
            return process.wait(say)
        finally:
            self._is_over.set()
            try:
                if is_held:
                    self._signals.wait_for(self._give_back)
            finally:
                self._client.close()

    def _acquire(self) -> None:
        began = time.monotonic()
        with Progress(self._plan.target, self._plan.group, self._plan.job, say) as progress:
            try:
                self._signals.wait_for(lambda: self._client.acquire(timeout_sec=self._plan.timeout_s))
            except OrchestratorError as err:
                raise CommandError(str(err)) from err
        if progress.has_spoken or self._plan.verbose:
            say(f"group {self._plan.group} is held after {time.monotonic() - began:.1f} s")

    def _give_back(self) -> None:
        """Never raises: how the command ended is what counts."""
        try:
            self._client.release(timeout_sec=GIVE_BACK_S)
        except OrchestratorLeaseLostError:
            pass  # Said when it happened.
        except OrchestratorError as err:
            if err.code != "PERMISSION_DENIED":  # It was not held: lost, or never granted.
                say(f"group {self._plan.group} could not be given back ({err}); it ends with this process's session")

    # From the client's own threads.

    def _revoked(self, notice: RevokeNotice) -> None:
        say(
            f"group {notice.group_id} is wanted back within {notice.grace_s:.0f} s ({notice.reason}); then the command"
            " is frozen and saved, and goes on where it stands at its next turn"
        )

    def _lost(self, lost: LostLease) -> None:
        if lost.will_resume:
            say(f"the command is frozen and saved ({lost.reason}); it goes on where it stands at its next turn")
            return
        say(
            f"the lease on group {lost.group_id} was lost ({lost.reason}); the command is frozen when another job gets"
            f" the group. Asking for it again; to give up instead, end this process ({os.getpid()})"
        )
        self._acquire_again()

    def _acquire_again(self) -> None:
        while not self._is_over.is_set():
            try:
                self._client.acquire()
            except OrchestratorLeaseLostError:
                continue  # The loss that is known: said once, and nothing was asked.
            except OrchestratorError as err:
                if not self._is_over.is_set():
                    say(f"group {self._plan.group} was not granted again ({err}); end the command and start it anew")
                return
            say(f"group {self._plan.group} is held again; the command goes on")
            return

    def _shared(self, shared: SharedLease) -> None:
        if self._plan.verbose:
            say(f"the lease on group {shared.group_id} is shared: {shared.other}")
