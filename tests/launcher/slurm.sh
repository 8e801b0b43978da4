#!/usr/bin/env bash
# Jobs of `weft launch slurm`, of a user without rights, on a Slurm of emulated nodes, which takes a silent node for down after 300 s: one
# dies, another dies in a relaunch and is soon up again, srun is killed, jobs are asked to stop amid a save; each job
# goes on, with the bits of one that nothing disturbed. Tasks without PMIx end with a line.
#   slurm.sh SLURMLAB WEFT WEFT_FAULTY
slurmlab=${1:?usage: slurm.sh SLURMLAB WEFT WEFT_FAULTY} weft=$(realpath "${2:?}") faulty=$(realpath "${3:?}")
# shellcheck source=scripts/lab.sh
. "$(dirname "$slurmlab")/lab.sh"
# shellcheck source=tests/launcher/slurm_lab.sh
. "$(dirname "$0")/slurm_lab.sh"
export SLURMLAB_NAME=slurm$$ SLURMLAB_TIMEOUT=300
lab_up "$slurmlab" 3
be_nobody
steps=1500
cat >c.json <<'END'
{"model": {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "seq_length": 12, "vocab_size": 53},
 "train": {"micro_batch_size": 1, "global_batch_size": 4, "train_iters": 1500, "lr": 1e-3},
 "checkpoint": {"save_interval": 100, "keep_latest_k": 2}, "data": {"mock_data": true},
 "reliability": {"max_restarts": 3, "restart_delay_s": 0, "exchange_limit_s": 6},
 "device": {"peak_flops": 1e9, "num_threads": 1}, "log": {"trace_step": 0, "log_interval": 1000}}
END
ask run "${user[@]}" srun -N2 -n2 --mpi=none "$weft" train c.json --out none --mesh dp=2 >none.out 2>&1
grep -v '^srun:' none.out >lines
if [ "$(wc -l <lines)" -ne 1 ] || ! grep -q 'without PMIx' lines || ! grep -q 'exit code 2' none.out; then
    complain "without PMIx: $(cat none.out)"
fi
ask run "${user[@]}" srun -N2 "$weft" doctor zlib >doctor.out 2>&1
[ "$(grep -c '^node[0-9]: All that was asked for works' doctor.out)" -eq 2 ] || complain "doctor: $(cat doctor.out)"

submit whole "$weft"
finish whole

submit power "$weft"
wait_until 60 test -e power/checkpoints/latest || complain 'power: no checkpoint'
ask kill node1
finish power
says power 'weft: no end of the step on node1: the job is queued again without'
same power

# shellcheck disable=SC2317
starts_again() { grep -q 'it is started again' soon/slurm-*.out && [ "$(ranks node1 | wc -l)" -eq 2 ]; }
# Slurm keeps the place of the relaunch for good.
ask start node1
submit soon "$weft"
wait_until 60 test -e soon/checkpoints/latest || complain 'soon: no checkpoint'
kill -KILL "$(ranks node1 | head -n 1)"
wait_until 60 starts_again || complain 'soon: not started again'
ask kill node1
sleep 5
ask start node1
finish soon
says soon 'Unable to create step'
says soon ': the job is queued again (1 of 5)'
same soon

# Its ranks would train on, and to the end, where nothing reaches them.
submit alone "$weft"
wait_until 60 test -e alone/checkpoints/latest || complain 'alone: no checkpoint'
for pid in $(pgrep -x srun); do
    [ "$(ip netns identify "$pid")" != "$SLURMLAB_NAME-node0" ] || kill -KILL "$pid"
done
finish alone
says alone 'it is started again'
! grep 'finished: step 1500' alone/slurm-*.out || complain 'alone: the old ranks trained on'
same alone

# The save of step 300 takes 5 s.
for signal in USR1 INT; do
    FAULT=slow:save:0:300:5 FAULT_MARK=$folder/$signal.saves submit $signal "$faulty"
    wait_until 60 test -e $signal.saves || complain "$signal: no save"
    ask run scancel --batch --signal=$signal "$job"
    [ ! -e $signal/checkpoints/step-300 ] || complain "$signal: the save is over"
    if [ $signal = INT ]; then # nor is it queued again
        wait_until 60 ended || complain 'INT: the job goes on'
        ask run scontrol show job "$job" | grep -q ' ExitCode=75:0' || complain "INT: $(cat INT/slurm-*.out)"
        [ -e INT/checkpoints/step-300 ] || complain 'INT: the save is lost'
        queue INT
    fi
    finish $signal
    same $signal
done
exit $failed
