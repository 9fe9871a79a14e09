// Command cel answers, one JSON object a line, what Kubernetes' own selector language says of one device.
// The tests of draco.cel compare with it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/google/cel-go/cel"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apiserver/pkg/cel/environment"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"
)

// question asks for one expression on one device, or without a device for the expression alone.
type question struct {
	program
	Device *device `json:"device"`
	// Overloads asks for the overloads of every function instead.
	Overloads bool `json:"overloads"`
}

// program is what is compiled, and how.
type program struct {
	Expression string `json:"expression"`
	// Environment is "stored" (what the scheduler compiles with; the default) or "new" (what the API server admits).
	Environment string `json:"environment"`
	// Gates holds the feature gates that are not as in a cluster without settings: consumable capacity on, lists off.
	Gates struct {
		NoConsumableCapacity bool `json:"noConsumableCapacity"`
		ListTypeAttributes   bool `json:"listTypeAttributes"`
	} `json:"gates"`
}

type device struct {
	Driver                   string                                                    `json:"driver"`
	Attributes               map[resourceapi.QualifiedName]resourceapi.DeviceAttribute `json:"attributes"`
	Capacity                 map[resourceapi.QualifiedName]resourceapi.DeviceCapacity  `json:"capacity"`
	AllowMultipleAllocations *bool                                                     `json:"allowMultipleAllocations"`
}

// answer has exactly one of match, compileError and error where a device was asked about.
type answer struct {
	Match        *bool  `json:"match,omitempty"`
	CompileError string `json:"compileError,omitempty"`
	Error        string `json:"error,omitempty"`
	// EstimatedCost is the worst case, absent where it has no bound.
	EstimatedCost *uint64 `json:"estimatedCost,omitempty"`
	// Cost is what this evaluation took.
	Cost *uint64 `json:"cost,omitempty"`
	// Overloads has a list for each function: each overload's id and its signature, in the checker's order.
	Overloads map[string][][2]string `json:"overloads,omitempty"`
}

// compiled keeps what was compiled: many devices are asked about with the same expression.
type compiled struct {
	results map[program]dracel.CompilationResult
}

const kept = 1024

func (c *compiled) get(ask program) dracel.CompilationResult {
	if result, ok := c.results[ask]; ok {
		return result
	}
	if len(c.results) >= kept {
		clear(c.results)
	}
	which := environment.StoredExpressions
	if ask.Environment == "new" {
		which = environment.NewExpressions
	}
	compiler := dracel.GetCompiler(dracel.Features{
		EnableConsumableCapacity: !ask.Gates.NoConsumableCapacity,
		EnableListTypeAttributes: ask.Gates.ListTypeAttributes,
	})
	result := compiler.CompileCELExpression(ask.Expression, dracel.Options{EnvType: &which})
	c.results[ask] = result
	return result
}

func overloads(env *cel.Env) map[string][][2]string {
	all := map[string][][2]string{}
	for name, function := range env.Functions() {
		for _, overload := range function.OverloadDecls() {
			types := make([]string, 0, len(overload.ArgTypes()))
			for _, argument := range overload.ArgTypes() {
				types = append(types, argument.String())
			}
			kind := "function"
			if overload.IsMemberFunction() {
				kind = "method"
			}
			signature := fmt.Sprintf("%s(%s) -> %s", kind, strings.Join(types, ", "), overload.ResultType())
			all[name] = append(all[name], [2]string{overload.ID(), signature})
		}
	}
	return all
}

func reply(ask question, programs *compiled) (a answer) {
	defer func() {
		if cause := recover(); cause != nil {
			a = answer{Error: fmt.Sprintf("panic: %v", cause)}
		}
	}()
	program := programs.get(ask.program)
	if program.Error != nil {
		return answer{CompileError: program.Error.Detail}
	}
	if program.MaxCost != math.MaxUint64 {
		a.EstimatedCost = &program.MaxCost
	}
	if ask.Overloads {
		a.Overloads = overloads(program.Environment)
	}
	if ask.Device == nil {
		return a
	}
	match, details, err := program.DeviceMatches(context.Background(), dracel.Device{
		Driver:                   ask.Device.Driver,
		AllowMultipleAllocations: ask.Device.AllowMultipleAllocations,
		Attributes:               ask.Device.Attributes,
		Capacity:                 ask.Device.Capacity,
	})
	if details != nil {
		a.Cost = details.ActualCost()
	}
	if err != nil {
		a.Error = err.Error()
		return a
	}
	a.Match = ptr.To(match)
	return a
}

func main() {
	programs := &compiled{results: map[program]dracel.CompilationResult{}}
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriterSize(os.Stdout, 1<<20)
	write := json.NewEncoder(out)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			var ask question
			a := answer{}
			if problem := json.Unmarshal(line, &ask); problem != nil {
				a.Error = "unreadable question: " + problem.Error()
			} else {
				a = reply(ask, programs)
			}
			if problem := write.Encode(a); problem != nil {
				panic(problem)
			}
		}
		if in.Buffered() == 0 || err != nil {
			if problem := out.Flush(); problem != nil {
				panic(problem)
			}
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			panic(err)
		}
	}
}
