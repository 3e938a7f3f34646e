"""The union of several gcovr JSON reports of the header: what no build ran, and the two shares.

    coverage.py HEADER LINES BRANCHES REPORT...

fails below LINES or BRANCHES, in percent. A branch counts as one where the builds have equally many
on its line, and as each build's own where they differ (a line that means other code on each path).
"""

import json
import sys

header, least_lines, least_branches = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
lines, branches = {}, {}
for name in sys.argv[4:]:
    for entry in json.load(open(name))["files"][0]["lines"]:
        if entry.get("gcovr/noncode") or entry.get("gcovr/excluded"):
            continue
        number = entry["line_number"]
        lines[number] = lines.get(number, 0) + entry["count"]
        for index, branch in enumerate(entry["branches"]):
            key = number, len(entry["branches"]), index
            branches[key] = branches.get(key, 0) + branch["count"]

text = open(header).read().split("\n")
missed_lines = sorted(number for number, count in lines.items() if not count)
missed_branches = sorted(key for key, count in branches.items() if not count)
if missed_lines or missed_branches:
    print("Never run:")
for number in missed_lines:
    print(f"  {number}: {text[number - 1].strip()}")
for number in sorted({key[0] for key in missed_branches} - set(missed_lines)):
    n = sum(key[0] == number for key in missed_branches)
    print(f"  {number}: {n} of its branches: {text[number - 1].strip()}")


def share(what, total, missed):
    percent = 100 * (total - missed) / total
    print(f"{what}: {percent:.1f} % ({total - missed} of {total})")
    return percent


enough = share("lines", len(lines), len(missed_lines)) >= least_lines
enough &= share("branches", len(branches), len(missed_branches)) >= least_branches
sys.exit(not enough)
