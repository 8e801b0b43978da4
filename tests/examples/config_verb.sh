#!/usr/bin/env bash
# weft config: every key is listed and explained, with pages that exist; the schema accepts the examples
# and the defaults, and refuses what weft refuses (skipped without Python's jsonschema).
#   config_verb.sh SOURCE BUILD
set -euo pipefail
source=${1:?usage: config_verb.sh SOURCE BUILD} weft=${2:?}/weft
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
    echo "config_verb: $*" >&2
    exit 1
}
num_keys=$("$weft" config | wc -l)
[ "$num_keys" -gt 150 ] || fail "only $num_keys keys"
[ "$("$weft" config --json | grep -c '"key": ')" -eq "$num_keys" ] || fail "not all keys are explained"
for page in $("$weft" config --json | grep -o 'docs/[a-z]*\.md' | sort -u); do
    [ -f "$source/$page" ] || fail "no page $page"
done
explained=$("$weft" config --explain checkpoint | grep -cE '^ +key +checkpoint\.')
[ "$explained" -eq "$("$weft" config | grep -c '^checkpoint\.')" ] || fail "--explain checkpoint: $explained keys"
"$weft" config --explain lr | grep -q 'on resume  may change' || fail "--explain lr"
"$weft" config --explain model.hidden_size | grep -q 'another model' || fail "--explain model.hidden_size"
"$weft" config --explain train_iters | grep -q 'suffixes   k, M, B or T' || fail "--explain train_iters"
refused=$("$weft" config --explain train.train_itres 2>&1) && fail "an unknown key is explained"
grep -q 'did you mean train.train_iters?' <<<"$refused" || fail "$refused"
"$weft" config --schema --json 2>/dev/null && fail "--schema beside --json"

for python in python3 /usr/bin/python3 ''; do
    [ -n "$python" ] || { echo "skipped: no Python with jsonschema (Debian: python3-jsonschema)" && exit 77; }
    ! "$python" -c 'import jsonschema' 2>/dev/null || break
done
"$weft" config --schema >"$folder/schema.json"
cat >"$folder/check.py" <<'END'
import glob, json, re, subprocess, sys
from jsonschema import Draft202012Validator as Validator

source, weft, folder = sys.argv[1:]
schema = json.load(open(folder + "/schema.json"))
Validator.check_schema(schema)
validator = Validator(schema)

for path in glob.glob(source + "/examples/*.json"):
    text = "\n".join(re.sub(r"(^|\s)//.*", "", line) for line in open(path))
    validator.validate(json.loads(text))
validator.validate({name: {key: value["default"] for key, value in section["properties"].items()}
                    for name, section in schema["properties"].items()})

def both(config, wanted):
    with open(folder + "/config.json", "w") as out:
        json.dump(config, out)
    mock = ["--set", "mock_data=true", "--set", "vocab_size=64"]
    ran = subprocess.run([weft, "schedule", folder + "/config.json"] + mock, capture_output=True)
    says = [validator.is_valid(config), ran.returncode == 0]
    assert says == [wanted, wanted], (config, says, ran.stderr)

for good in [{}, {"train": {"train_iters": "20k"}}, {"train": {"train_iters": 1e3}},
             {"device": {"memory_limit": "1.5 GiB"}}, {"device": {"memory_limit": "1e1GiB"}}, {"data": {"data_path": None}},
             {"reliability": {"restart_delay_s": "2m"}}, {"log": {"trace_ranks": 0}},
             {"data": {"blend": [0.5, "a", "0.5", "b"]}}]:
    both(good, True)
for wrong in [[], {"modell": {}}, {"model": []}, {"model": {"num_layer": 2}}, {"model": {"num_layers": 0}},
              {"model": {"num_layers": "2"}}, {"model": {"num_layers": 2.5}}, {"model": {"num_layers": None}},
              {"train": {"lr": "1"}}, {"train": {"lr": 1e4}}, {"train": {"train_iters": "20Q"}},
              {"train": {"train_iters": "20"}}, {"train": {"precision": "fp64"}}, {"data": {"mock_data": 1}},
              {"device": {"memory_limit": "8GiBs"}}, {"device": {"memory_limit": "1.2.3GiB"}},
              {"device": {"memory_limit": "-1GiB"}}, {"device": {"memory_limit": ".5GiB"}}, {"log": {"trace_ranks": [0.5]}}]:
    both(wrong, False)
END
"$python" "$folder/check.py" "$source" "$weft" "$folder" || fail "the schema and weft do not agree"
