#!/bin/sh
# Trains under srun, on a Slurm cluster of this machine that it starts and stops, and compares bits with one process.
# Usage: srun.sh FSC FSX      needs root, slurm-wlm and munge (with Slurm's PMIx plugin), and FSX with `--features mpi`
# Skips, with the reason and status 0, where the cluster does not start.
set -eu
fsc=$(realpath "$1") fsx=$(realpath "$2")
work=$(mktemp -d) host=$(hostname -s)
skip() { echo "skipped: srun: $1"; exit 0; }
stop() {
  for file in "$work"/ctld.pid "$work"/d.pid "$work"/munge.pid; do
    [ ! -s "$file" ] || kill "$(cat "$file")" 2> /dev/null || true
  done
  for _ in 1 2 3 4 5 6 7 8 9 10; do pgrep -f "$work" > /dev/null || break; sleep 1; done
  # A daemon that takes longer writes its state once more.
  rm -rf "$work" 2> /dev/null || { sleep 3; rm -rf "$work"; } || true
}
trap stop EXIT
[ "$(id -u)" = 0 ] || skip 'only root can start a cluster'
for program in srun slurmctld slurmd munged; do command -v $program > /dev/null || skip "there is no $program"; done
! pgrep -x slurmctld > /dev/null || skip 'a cluster runs here already'

# munged wants folders that nobody else writes, so they are its own and not below a folder of all.
chmod 755 "$work"
mkdir "$work/munge" "$work/state" "$work/spool"
dd if=/dev/urandom of="$work/munge/key" bs=1024 count=1 2> /dev/null
chmod 400 "$work/munge/key"
munged --force --key-file="$work/munge/key" --socket="$work/munge/socket" --pid-file="$work/munge.pid" \
  --log-file="$work/munge.log" --seed-file="$work/munge/seed" 2> /dev/null || skip "munged does not start: $(tail -n 1 "$work/munge.log")"
cat > "$work/slurm.conf" << END
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/ctld.pid
SlurmdPidFile=$work/d.pid
SlurmctldLogFile=$work/ctld.log
SlurmdLogFile=$work/d.log
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
NodeName=$host NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:4
END
export SLURM_CONF="$work/slurm.conf" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
case $(srun --mpi=list 2>&1) in *pmix*) ;; *) skip 'Slurm has no PMIx' ;; esac
slurmctld || skip 'slurmctld does not start'
slurmd || skip 'slurmd does not start'
timeout 30 srun -n 3 true 2> "$work/said" || skip "nothing runs: $(tail -n 1 "$work/said")"

cd "$work"
cat > m.fs << END
model m {
  table items { rows 500  dim 16  init hash(scale: 0.1)  optimizer adagrad(lr: 0.05)  sharding row_wise }
  input history: ids(items) { max 20 }
  input y: label like history
  loss bce_with_logits(linear(lookup(history), 1, name: "head"), y, normalize: tokens)
}
train { batch 12  steps 50  optimizer adam(lr: 1e-3) }
workload synthetic { generate { lengths fixed(12)  ids zipf(1.05)  labels hash } }
END
"$fsc" compile m.fs -o m.json --ranks 3 --strategy pec > /dev/null 2>&1
"$fsx" run m.json -q --steps 50 --save one.safetensors
timeout 120 srun --mpi=pmix -n 3 "$fsx" run m.json -q --steps 50 --save three.safetensors
cmp one.safetensors three.safetensors
echo 'ok  under srun 3 processes train the bits of one'

# Asked where they are, then interrupted: what they have is saved, and the status is the signal's.
timeout 60 srun --mpi=pmix -n 3 "$fsx" run m.json -q --steps 100000000 --save kept.safetensors \
  --status status.json 2> said & job=$!
for _ in $(seq 60); do [ -s status.json ] && break; sleep 1; done
step=$(squeue -h -s -o %i)
scancel --signal=USR1 "$step"
sleep 2
scancel --signal=INT "$step"
status=0
wait $job || status=$?
if [ $status != 130 ] || [ ! -s kept.safetensors ] || ! grep -q '^where the ranks are:' said; then
  echo "FAILED: interrupted under srun: $status"
  cat said
  exit 1
fi
echo 'ok  scancel reaches all: they say where they are, save and end'
