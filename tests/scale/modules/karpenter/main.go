// Karpenter with kwok's cloud provider, whose instance types have the devices that a file says.
//
// Two things that the provider's own program cannot do: give an instance type devices, as its file of types has no room for
// them; and stay off the network, as it answers on every address of the machine. The file is what `draco autoscale template`
// writes: templates of ResourceSlices by the name of the instance type.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"unique"

	resource "k8s.io/api/resource/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/node/health"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator"
)

const templates = "SLICE_TEMPLATES" // environment variable with the path of the file

// sliceTemplate is one future ResourceSlice of a node, in the words of the API.
type sliceTemplate struct {
	Driver         string                `json:"driver"`
	Pool           string                `json:"pool"`
	Devices        []resource.Device     `json:"devices"`
	SharedCounters []resource.CounterSet `json:"sharedCounters"`
}

func (t sliceTemplate) forKarpenter() *cloudprovider.ResourceSliceTemplate {
	told := &cloudprovider.ResourceSliceTemplate{
		Driver:         unique.Make(t.Driver),
		Pool:           cloudprovider.ResourcePool{Name: unique.Make(t.Pool)},
		SharedCounters: t.SharedCounters,
	}
	for _, device := range t.Devices {
		shared := device.AllowMultipleAllocations
		told.Devices = append(told.Devices, cloudprovider.Device{
			Name:                     unique.Make(device.Name),
			Attributes:               device.Attributes,
			Capacity:                 device.Capacity,
			ConsumesCounters:         device.ConsumesCounters,
			AllowMultipleAllocations: shared != nil && *shared,
		})
	}
	return told
}

// readTemplates reads the file; without one there are no devices.
func readTemplates(path string) (map[string][]sliceTemplate, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var byType map[string][]sliceTemplate
	if err := json.Unmarshal(text, &byType); err != nil {
		return nil, fmt.Errorf("%s is not what draco autoscale template writes: %w", path, err)
	}
	return byType, nil
}

// instanceTypes are those of kwok's provider, with devices.
func instanceTypes(ctx context.Context) ([]*cloudprovider.InstanceType, error) {
	types, err := kwok.ConstructInstanceTypes(ctx)
	if err != nil {
		return nil, err
	}
	byType, err := readTemplates(os.Getenv(templates))
	if err != nil {
		return nil, err
	}
	for _, each := range types {
		for _, template := range byType[each.Name] {
			devices := &each.DynamicResources
			devices.ResourceSliceTemplates = append(devices.ResourceSliceTemplates, template.forKarpenter())
		}
	}
	return types, nil
}

func run() error {
	ctrl.NewManager = func(config *rest.Config, options manager.Options) (manager.Manager, error) {
		options.Metrics.BindAddress = "0"
		options.HealthProbeBindAddress = "0"
		return manager.New(config, options)
	}
	ctx, op := operator.NewOperator()
	types, err := instanceTypes(ctx)
	if err != nil {
		return err
	}
	plain := kwok.NewCloudProvider(ctx, op.GetClient(), types)
	provider := overlay.Decorate(plain, op.GetClient(), op.InstanceTypeStore)
	repairs, err := health.NewRepairPolicyMatcher(ctx, provider)
	if err != nil {
		return err
	}
	seen := state.NewCluster(op.Clock, op.GetClient(), provider, state.WithRepairPolicyMatcher(repairs))
	all := controllers.NewControllers(
		ctx, op.Manager, op.Clock, op.GetClient(), op.EventRecorder, provider, plain, seen, op.InstanceTypeStore, op.PredictionStore,
	)
	op.WithControllers(ctx, all...).Start(ctx)
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "karpenter:", err)
		os.Exit(1)
	}
}
