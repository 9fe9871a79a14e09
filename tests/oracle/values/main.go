// Command values answers, one JSON object a line, what Kubernetes' own Go code says of quantities and versions.
// The tests of draco.resources.quantity and draco.resources.semver compare with it.
package main

import (
	"bufio"
	"encoding/json"
	"os"
	"strconv"

	"github.com/blang/semver/v4"
	"k8s.io/apimachinery/pkg/api/resource"
)

// question asks for one operation on one text or two.
type question struct {
	Op   string   `json:"op"`
	Text []string `json:"text"`
}

// answer carries the error, or what the operation has.
type answer struct {
	Error       string `json:"error,omitempty"`
	Text        string `json:"text"`
	Format      string `json:"format"`
	Int64       *int64 `json:"int64"`
	Value       int64  `json:"value"`
	Approximate string `json:"approximate"`
	Compare     int    `json:"compare"`
}

func describe(q resource.Quantity) answer {
	a := answer{Value: q.Value(), Format: string(q.Format)}
	if number, ok := q.AsInt64(); ok {
		a.Int64 = &number
	}
	a.Approximate = strconv.FormatFloat(q.AsApproximateFloat64(), 'g', -1, 64)
	a.Text = q.String()
	return a
}

func quantities(ask question) answer {
	parsed := make([]resource.Quantity, len(ask.Text))
	for i, text := range ask.Text {
		q, err := resource.ParseQuantity(text)
		if err != nil {
			return answer{Error: err.Error()}
		}
		parsed[i] = q
	}
	switch ask.Op {
	case "compare":
		return answer{Compare: parsed[0].Cmp(parsed[1])}
	case "add", "sub":
		total := parsed[0]
		for _, q := range parsed[1:] {
			if ask.Op == "add" {
				total.Add(q)
			} else {
				total.Sub(q)
			}
		}
		return describe(total)
	default:
		return describe(parsed[0])
	}
}

func versions(ask question) answer {
	parse := semver.Parse
	if ask.Op == "version-loose" {
		parse = semver.ParseTolerant
	}
	parsed := make([]semver.Version, len(ask.Text))
	for i, text := range ask.Text {
		v, err := parse(text)
		if err != nil {
			return answer{Error: err.Error()}
		}
		parsed[i] = v
	}
	if ask.Op == "version-compare" {
		return answer{Compare: parsed[0].Compare(parsed[1])}
	}
	return answer{Text: parsed[0].String()}
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var ask question
		if err := json.Unmarshal(lines.Bytes(), &ask); err != nil {
			panic(err)
		}
		var a answer
		switch ask.Op {
		case "version", "version-loose", "version-compare":
			a = versions(ask)
		default:
			a = quantities(ask)
		}
		if err := out.Encode(a); err != nil {
			panic(err)
		}
	}
}
