// Command allocator answers, one JSON object a line, which devices Kubernetes' own structured allocator gives to claims.
// The tests of draco.allocation compare with it; the benchmarks ask it to time itself.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// question is a scenario: the objects of a cluster, and which claims to allocate together for one node.
type question struct {
	Name    string            `json:"name"`
	Objects []json.RawMessage `json:"objects"`
	Node    string            `json:"node"`
	Claims  []string          `json:"claims"`
	// Features replaces the default features of 1.36 and 1.37, by the names of their gates.
	Features []string `json:"features"`
	// TimeoutMilliseconds bounds one search; 10 seconds, as in kube-scheduler, unless given.
	TimeoutMilliseconds int64 `json:"timeoutMilliseconds"`
	// Timing asks how long it takes to find the first node that fits, instead of an answer for one node.
	Timing *timing `json:"timing"`
}

type timing struct {
	// Nodes are tried in this order; all nodes in the objects' order unless given.
	Nodes  []string `json:"nodes"`
	Repeat int      `json:"repeat"`
}

type answer struct {
	Name    string                         `json:"name"`
	Results []resourceapi.AllocationResult `json:"results"`
	Error   string                         `json:"error,omitempty"`
	// Fatal tells an error that ends the scheduling attempt of the pod from one that only rules out the node.
	Fatal *bool `json:"fatal,omitempty"`
	// TimedOut and Panic mark answers that say nothing of the algorithm.
	TimedOut bool `json:"timedOut,omitempty"`
	Panic    bool `json:"panic,omitempty"`

	Node          string    `json:"node,omitempty"`
	BuildSeconds  []float64 `json:"buildSeconds,omitempty"`
	SearchSeconds []float64 `json:"searchSeconds,omitempty"`
}

func (a *answer) fail(err error) {
	fatal := !errors.Is(err, structured.ErrFailedAllocationOnNode)
	a.Results, a.Error, a.Fatal = nil, err.Error(), &fatal
	a.TimedOut = errors.Is(err, context.DeadlineExceeded)
}

// oracle keeps compiled selectors from one question to the next.
type oracle struct {
	selectors *dracel.Cache
}

func (o *oracle) reply(ask question) (a answer) {
	a.Name = ask.Name
	defer func() {
		if cause := recover(); cause != nil {
			a.fail(fmt.Errorf("panic: %v", cause))
			a.Panic = true
		}
	}()
	world, err := readWorld(ask.Objects)
	if err != nil {
		a.fail(err)
		return a
	}
	enabled, err := chooseFeatures(ask.Features)
	if err != nil {
		a.fail(err)
		return a
	}
	claims, err := world.pick(ask.Claims)
	if err != nil {
		a.fail(err)
		return a
	}
	if ask.Timing != nil {
		o.measure(ask, world, enabled, claims, &a)
		return a
	}
	allocator, err := o.build(world, enabled)
	if err != nil {
		a.fail(err)
		return a
	}
	limit := 10 * time.Second
	if ask.TimeoutMilliseconds > 0 {
		limit = time.Duration(ask.TimeoutMilliseconds) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	results, err := allocator.Allocate(ctx, world.node(ask.Node), claims)
	if err != nil {
		a.fail(err)
		return a
	}
	a.Results = results
	return a
}

func (o *oracle) build(world *world, enabled structured.Features) (structured.Allocator, error) {
	return structured.NewAllocator(
		context.Background(), enabled, world.inUse(enabled), world, world.taintedSlices(), o.selectors,
	)
}

// measure times building an allocator and looking for the first node that fits, each repeat with an allocator of its own.
func (o *oracle) measure(
	ask question, world *world, enabled structured.Features, claims []*resourceapi.ResourceClaim, a *answer,
) {
	var nodes []*corev1.Node
	for _, name := range ask.Timing.Nodes {
		nodes = append(nodes, world.node(name))
	}
	if len(nodes) == 0 {
		nodes = world.nodes
	}
	for range max(1, ask.Timing.Repeat) {
		start := time.Now()
		allocator, err := o.build(world, enabled)
		built := time.Now()
		if err != nil {
			a.fail(err)
			return
		}
		a.Results, a.Node = nil, ""
		for _, node := range nodes {
			results, err := allocator.Allocate(context.Background(), node, claims)
			if err != nil && !errors.Is(err, structured.ErrFailedAllocationOnNode) {
				a.fail(err)
				return
			}
			if results != nil {
				a.Results, a.Node = results, node.Name
				break
			}
		}
		found := time.Now()
		a.BuildSeconds = append(a.BuildSeconds, built.Sub(start).Seconds())
		a.SearchSeconds = append(a.SearchSeconds, found.Sub(built).Seconds())
	}
}

func chooseFeatures(names []string) (structured.Features, error) {
	if len(names) == 0 {
		return structured.Features{
			AdminAccess:            true,
			ConsumableCapacity:     true,
			DeviceBindingAndStatus: true,
			DeviceTaints:           true,
			PartitionableDevices:   true,
			PrioritizedList:        true,
		}, nil
	}
	var chosen structured.Features
	known := map[string]*bool{
		"DRAAdminAccess":             &chosen.AdminAccess,
		"DRAConsumableCapacity":      &chosen.ConsumableCapacity,
		"DRADeviceBindingConditions": &chosen.DeviceBindingAndStatus,
		"DRADeviceTaints":            &chosen.DeviceTaints,
		"DRAFractionalCapacityRange": &chosen.FractionalCapacityRange,
		"DRAPartitionableDevices":    &chosen.PartitionableDevices,
		"DRAPrioritizedList":         &chosen.PrioritizedList,
	}
	for _, name := range names {
		feature, ok := known[name]
		if !ok {
			return chosen, fmt.Errorf("unknown feature %q", name)
		}
		*feature = true
	}
	return chosen, nil
}

func main() {
	structured.EnableAllocators("incubating")
	o := &oracle{selectors: dracel.NewCache(4096, dracel.Features{EnableConsumableCapacity: true})}
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriterSize(os.Stdout, 1<<20)
	write := json.NewEncoder(out)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			var ask question
			a := answer{}
			if problem := json.Unmarshal(line, &ask); problem != nil {
				a.fail(fmt.Errorf("unreadable question: %w", problem))
			} else {
				a = o.reply(ask)
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
