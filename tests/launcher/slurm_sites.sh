#!/usr/bin/env bash
# Jobs of `weft launch slurm` as sites have them, of a user without rights: GPUs, a setup file and variables under
# --export=NONE; an array, whose second job finds the folder taken; max_restarts used up; a job's time that ends
# amid a save, after which it goes on with the bits of one that nothing disturbed.
#   slurm_sites.sh SLURMLAB WEFT WEFT_FAULTY
slurmlab=${1:?usage: slurm_sites.sh SLURMLAB WEFT WEFT_FAULTY} weft=$(realpath "${2:?}") faulty=$(realpath "${3:?}")
# shellcheck source=scripts/lab.sh
. "$(dirname "$slurmlab")/lab.sh"
# shellcheck source=tests/launcher/slurm_lab.sh
. "$(dirname "$0")/slurm_lab.sh"
export SLURMLAB_NAME=sites$$
lab_up "$slurmlab" 2
be_nobody
cat >c.json <<'END'
{"model": {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "seq_length": 12, "vocab_size": 53},
 "train": {"micro_batch_size": 1, "global_batch_size": 4, "train_iters": 120, "lr": 1e-3, "stop_timeout_s": 40},
 "checkpoint": {"save_interval": 20, "keep_latest_k": 2}, "data": {"mock_data": true},
 "reliability": {"restart_delay_s": 0, "exchange_limit_s": 6},
 "device": {"peak_flops": 1e9, "num_threads": 1}, "log": {"trace_step": 0, "log_interval": 1000}}
END
steps=120

# GPUs of the nodes' four, of which each task sees its job's.
cat >see <<'END'
#!/bin/bash
echo "$SLURM_PROCID $CUDA_VISIBLE_DEVICES $SET_UP $GIVEN" >>"$4/seen"
END
chmod +x see
echo 'export SET_UP="set up"' >setup.sh
submit gpus "$folder/see" --set device.kind=cuda --setup setup.sh --env GIVEN=given --sbatch --export=NONE
wait_until 60 ended || complain 'gpus: the job goes on'
[ "$(sort gpus/seen)" = "$(printf '%d 0,1 set up given\n' 0 1 2 3)" ] ||
    complain "gpus: $(cat gpus/seen gpus/slurm-*.out)"
submit many "$folder/see" --set device.kind=cuda --sbatch --gpus-per-node=5 2>many.err
[ -z "$job" ] || complain 'five GPUs of a node that has four'

# One of the array's two jobs trains, the other says who does, and is not queued again.
write whole "$weft"
queue whole --array=0-1
finish whole
[ "$(cat whole/slurm-*.out | grep -cE 'another training (is at work|has worked) there')" -eq 1 ] ||
    complain "array: $(tail -n 5 whole/slurm-*.out)"

# shellcheck disable=SC2317
trains() { [ "$(ranks node0 | wc -l)" -eq 2 ] && grep -q steps "$1/.alive"; }
# shellcheck disable=SC2317
has_ended() { [ "$(cat restarts/slurm-*.out | grep -c 'the job ended with exit code')" -eq "$1" ]; }
# Of two killed ranks one is a restart, the other the end.
submit restarts "$weft" --set reliability.max_restarts=1 --set train.train_iters=100000
for times in 1 2; do
    wait_until 60 trains restarts || complain "restarts: no rank: $(cat restarts/slurm-*.out)"
    kill -KILL "$(ranks node0 | head -n 1)"
    wait_until 60 has_ended $times || complain "restarts: kill $times: $(cat restarts/slurm-*.out)"
done
wait_until 60 ended || complain 'restarts: the job goes on'
says restarts 'it is started again in 0 s (1 of 1, reliability.max_restarts)'
says restarts 'and was started again 1 times (reliability.max_restarts)'

# The time, two minutes, is over before the save of step 20 is.
FAULT=slow:save:0:20:75 FAULT_MARK=$folder/limit.saves submit limit "$faulty" --time 2
finish limit
ask run scontrol show job "$job" | grep -q ' Restarts=[1-9]' || complain "limit: not queued again: $(cat limit/slurm-*.out)"
same limit
exit $failed
