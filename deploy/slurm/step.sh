# shellcheck shell=bash
# Sourced by the batch scripts: a job step that outlives the job's time limit.

# run_step COMMAND...: run it on every rank. SLURM sends the batch script SIGUSR1 before the time limit (#SBATCH
# --signal=B:...); then the step is stopped, and the job goes back into the queue to resume where it stopped. A preempted
# job is requeued by SLURM itself, a cancelled one not at all.
run_step() {
    local step code=0 warned=
    # From SLURM 22.05 to 23.02 a step does not take over the job's --cpus-per-task.
    srun --kill-on-bad-exit=1 "--cpus-per-task=${SLURM_CPUS_PER_TASK:-1}" "$@" &
    step=$!
    trap 'warned=1; stop_step "$step"' USR1
    wait "$step" || code=$?
    if [[ $warned ]]; then # SIGUSR1 ended the waiting, not the step
        code=0
        wait "$step" || code=$?
        ((code == 0)) || requeue
    fi
    return "$code"
}

# This job, or this task of an array alone: the job id of one of the tasks is also the id of the whole array.
this_job() {
    echo "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_JOB_ID:+_$SLURM_ARRAY_TASK_ID}"
}

# A controller that is busy for a moment must not cost the rest of the run.
requeue() {
    for _ in 1 2 3; do
        scontrol requeue "$(this_job)" && return
        sleep "${PAUSE:-10}"
    done
    echo "scontrol requeue $(this_job) failed: submit the job again, with --ckpt_path last." >&2
}

# stop_step PID: SIGTERM to every rank, upon which fit saves between two batches, at the same one on all ranks. A rank that
# hangs (in a driver, in a dead network) is killed after a minute, and the run resumes from its last checkpoint.
stop_step() {
    # Without scancel srun kills its ranks, and the run resumes from its last checkpoint.
    scancel --signal=TERM "$(this_job)" || kill -TERM "$1" 2>/dev/null || true
    for ((seconds = 0; seconds < ${GRACE:-60}; seconds++)); do
        kill -0 "$1" 2>/dev/null || return 0
        sleep 1
    done
    kill -TERM "$1" 2>/dev/null || true # srun has its ranks killed
}
